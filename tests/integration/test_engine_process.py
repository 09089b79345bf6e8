"""The engine pod as processes, with the stand-in runtime, against a scripted agent on real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from tests.support import standin, witness
from tests.support.engine_process import REV, Engine, until
from tests.support.scripted_agent import Pod, ScriptedAgent, open_fds

from ling_api.errors import CheckpointChanged
from ling_api.v1 import agent_pb2 as pb
from ling_engine.reference import checkpoint, tensorfile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration


class Stage:
    """A scripted agent with two pods, and the engines that a test starts."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.gates = tmp / "gates"
        self.gates.mkdir()
        self.agent = ScriptedAgent(tmp / "d")
        self.one, self.two = self.agent.pod("d000"), self.agent.pod("d001")
        self.port = self.agent.listen()
        self.engines: list[Engine] = []

    async def engine(self, pod: Pod, *flags: str, command: str = "run", **shape: Any) -> Engine:
        model = standin.write_model(self.tmp / "model", **{"nbytes": 3 << 20, **shape})
        engine = Engine(pod.folder, model, *flags, command=command, gates=self.gates)
        self.engines.append(engine)
        return await engine.start()

    def hold(self, step: str) -> Path:
        hold = self.gates / f"{step}.hold"
        hold.touch()
        return hold

    async def reached(self, step: str) -> None:
        await until((self.gates / f"{step}.reached").exists, f"step {step}")

    async def phase(self, pod: Pod, phase: int) -> pb.ServerEvent:
        await until(lambda: pod.phase() == phase, f"phase {pb.Phase.Name(phase)}")  # type: ignore[arg-type]
        return pod.events[-1]

    async def ask(self, **body: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=90) as client:
            return await client.post(f"http://127.0.0.1:{self.port}/v1/completions", json={"max_tokens": 2, **body})


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    await stage.agent.start()
    yield stage
    for engine in stage.engines:
        await engine.kill()
    await stage.agent.stop()
    stage.agent.close()


async def test_first_fills_second_attaches_and_bytes_are_right(stage: Stage) -> None:
    await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    assert (await stage.ask()).status_code == 200
    assert set(stage.one.events[-1].phases) >= {"filling", "stored", "sealed", "attached", "warm", "accepting"}
    await stage.engine(stage.two)
    event = await stage.phase(stage.two, pb.PHASE_WARM)
    assert "filling" not in event.phases
    assert {"mapped", "bound", "checked"} <= set(event.phases)
    (held,) = stage.agent.sets
    await until(lambda: [one["set"] for one in stage.two.ops("mapped")] == [held], "mapped, which another socket tells")
    assert len(stage.one.ops("deposit")) == 1
    assert not stage.two.ops("deposit")


async def test_hello_tells_plan_sets_and_identity(stage: Stage) -> None:
    stage.agent.go = False
    await stage.engine(stage.one)
    hello = await until(lambda: stage.one.hello, "hello")
    assert hello.revision == REV
    assert dict(hello.plan.private_bytes) == {"buffers": 16 << 20}
    (weights,) = hello.weights
    assert (weights.role, weights.rank, weights.bytes) == ("target", 0, 4 << 20)
    assert hello.role == pb.ROLE_GATED
    assert hello.purpose == pb.PURPOSE_SERVE


async def test_waiting_for_anothers_fill_then_granted(stage: Stage) -> None:
    stage.agent.promote = False  # either may be warm first once the set is sealed
    hold = stage.hold("load")
    await stage.engine(stage.one)
    await stage.reached("load")
    await stage.engine(stage.two)
    await until(lambda: stage.agent.waiting, "the second waits")
    hold.unlink()
    await stage.phase(stage.two, pb.PHASE_WARM)
    assert not stage.two.ops("deposit")


async def test_killed_server_leaves_the_launcher_gated_and_the_next_attaches(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    zygote = engine.pid("ling-zygote")
    engine.send("ling-server")
    event = await stage.phase(stage.one, pb.PHASE_EXITED)
    assert event.exit_code == -signal.SIGKILL
    asking = asyncio.create_task(stage.ask())  # waits in the listener's queue
    stage.one.say(go=pb.Go(reason="respawn"))
    event = await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    assert "filling" not in event.phases
    assert (await asking).status_code == 200
    assert engine.pid("ling-zygote") == zygote


async def test_server_outlives_the_zygote_and_a_new_zygote_forks_the_next(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    server, zygote = engine.pid("ling-server"), engine.send("ling-zygote")
    await until(lambda: engine.pid("ling-zygote") not in (0, zygote), "a new zygote")
    assert (await stage.ask()).status_code == 200
    assert engine.send("ling-server") == server
    event = await stage.phase(stage.one, pb.PHASE_EXITED)
    assert event.exit_code == -signal.SIGKILL
    stage.one.say(go=pb.Go())
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    assert (await stage.ask()).status_code == 200


async def test_zygote_and_server_die_with_the_launcher(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    children = psutil.Process(engine.process.pid).children(recursive=True)
    assert len(children) == 2
    engine.process.kill()
    await until(lambda: not any(witness.name_of(one.pid) for one in children), "both to die")


@pytest.mark.parametrize("first", ["ling-server", "ling-zygote"], ids=["the server", "the zygote, then the server"])
async def test_what_a_dead_server_leaves_behind_is_ended_too(stage: Stage, first: str) -> None:
    engine = await stage.engine(stage.one, children=3)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    server, launcher = engine.pid("ling-server"), psutil.Process(engine.process.pid)
    left = psutil.Process(server).children(recursive=True)
    assert len(left) == 3
    if first == "ling-zygote":
        engine.send(first)
        await until(lambda: psutil.Process(server).ppid() == launcher.pid, "the launcher to adopt the server")
    assert all(one.is_running() for one in left)
    os.kill(server, signal.SIGKILL)
    await stage.phase(stage.one, pb.PHASE_EXITED)
    await until(lambda: not any(witness.name_of(one.pid) for one in left), "its orphans to end")


async def test_zygote_killed_while_it_imports_or_describes_is_replaced(stage: Stage) -> None:
    hold = stage.hold("describe")
    engine = await stage.engine(stage.one)
    await stage.reached("describe")
    check = engine.send("ling-check", signal.SIGSTOP)  # so that it does not end by itself
    engine.send("ling-zygote")
    os.kill(check, signal.SIGKILL)
    hold.unlink()
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)


async def test_agent_restart_while_serving_hurts_nobody_and_gets_everything_back(stage: Stage) -> None:
    await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    (held,) = stage.agent.sets
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stage.port}", timeout=90) as client:
        assert (await client.post("/v1/completions", json={})).status_code == 200
        await stage.agent.stop()
        assert (await client.post("/v1/completions", json={})).status_code == 200
        await stage.agent.start()
        hello = await until(lambda: stage.one.hellos == 2 and stage.one.hello, "the second hello")
        assert hello.role == pb.ROLE_ACTIVE
        assert (hello.term, hello.server.phase) == (1, pb.PHASE_ACCEPTING)
        assert list(hello.server.sets) == [held]
        await until(lambda: held in stage.agent.sets and stage.agent.sets[held].manifest, "the back-up")
        await until(lambda: len(stage.one.ops("mapped")) == 2, "mapped again")
        assert (await client.post("/v1/completions", json={})).status_code == 200
    await stage.engine(stage.two)
    event = await stage.phase(stage.two, pb.PHASE_WARM)
    assert "filling" not in event.phases


@pytest.mark.parametrize("step", ["load", "loaded"])
async def test_agent_restart_in_the_middle_of_a_fill_continues_it(stage: Stage, step: str) -> None:
    hold = stage.hold(step)
    await stage.engine(stage.one)
    await stage.reached(step)
    (old,) = stage.agent.sets
    await stage.agent.stop()
    await stage.agent.start()
    await until(lambda: len(stage.one.ops("deposit")) == 2, "deposited again")
    hold.unlink()
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    assert stage.agent.sets[old].manifest is not None
    assert (await stage.ask()).status_code == 200
    assert sum(one.phase == pb.PHASE_STARTED for one in stage.one.events) == 1, "the same server"


async def test_agent_restart_before_stored_continues_the_fill(stage: Stage) -> None:
    stage.agent.answer_deposit = False
    await stage.engine(stage.one)
    await until(lambda: stage.one.ops("deposit"), "deposit")
    await stage.agent.stop()
    stage.agent.answer_deposit = True
    await stage.agent.start()
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    assert (await stage.ask()).status_code == 200


async def test_agent_restart_before_the_answer_to_attach(stage: Stage) -> None:
    stage.agent.answer_attach = False
    await stage.engine(stage.one)
    await until(lambda: stage.one.asked, "the question")
    await stage.agent.stop()
    stage.agent.answer_attach = True
    await stage.agent.start()
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)


async def test_drop_closes_the_launchers_copies_exactly(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    await until(lambda: stage.one.ops("stored"), "the back-up is taken")

    def memfds() -> int:
        return sum("ling-" in what for what in open_fds(engine.process.pid).values())

    assert memfds() == 2, "a region and its manifest"
    (held,) = stage.agent.sets
    assert stage.one.launcher is not None
    stage.one.launcher.put({"op": "drop", "set": held})
    await until(lambda: stage.one.ops("dropped"), "dropped")
    assert memfds() == 0
    assert (await stage.ask()).status_code == 200, "the server's mapping is its own"


async def test_servers_hold_no_descriptor_of_weights_or_of_others(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    await until(lambda: stage.one.ops("stored"), "the back-up is taken")
    server, zygote = open_fds(engine.pid("ling-server")), open_fds(engine.pid("ling-zygote"))
    assert not [what for what in (*server.values(), *zygote.values()) if "ling-" in what]
    held = [what for fd, what in zygote.items() if fd > 2]
    assert [what.split(":")[0] for what in held] == ["socket", "anon_inode"], "its control socket, the server's pidfd"
    sockets = sorted(what for what in server.values() if what.startswith("socket"))
    assert len(sockets) == 5, f"control, folder, listener, the loop's own pair: {server}"
    before = len(server)
    for _ in range(5):
        assert (await stage.ask()).status_code == 200
    await until(lambda: len(open_fds(engine.pid("ling-server"))) == before, "connections are closed")


async def test_sigterm_drains_and_ends_with_0(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    hold = stage.hold("answer")
    asking = asyncio.create_task(stage.ask(max_tokens=10, hold="answer"))
    await until(lambda: stage.one.performance and stage.one.performance.in_flight, "in flight")
    engine.terminate()
    await until(lambda: stage.one.left, "leaving")
    stage.one.role(pb.ROLE_DRAINING, 2, 90)
    await stage.phase(stage.one, pb.PHASE_DRAINING)
    hold.unlink()
    response = await asking
    assert (response.status_code, response.headers["connection"]) == (200, "close")
    assert await engine.exit() == 0
    assert stage.one.events[-1].phase == pb.PHASE_EXITED
    assert stage.one.events[-1].exit_code == 0


async def test_an_agent_that_lets_it_leave_for_ever_does_not_get_its_requests_killed(stage: Stage) -> None:
    """The pod's own time is known: what is in flight is answered before the kubelet's SIGKILL."""
    engine = await stage.engine(stage.one, "--leave-seconds", "5")
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    engine.terminate()
    await until(lambda: stage.one.left, "leaving")
    hold = stage.hold("answer")
    asking = asyncio.create_task(stage.ask(hold="answer"))
    await until(lambda: stage.one.performance and stage.one.performance.in_flight, "it accepts while it leaves")
    await stage.phase(stage.one, pb.PHASE_DRAINING)
    hold.unlink()
    assert (await asking).status_code == 200
    assert await engine.exit() == 0
    assert stage.one.events[-1].exit_code == 0


async def test_sigterm_without_an_agent_drains_too(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    await stage.agent.stop()
    engine.terminate()
    assert await engine.exit() == 0


async def test_a_request_beyond_grace_is_told_and_counted(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    asking = asyncio.create_task(stage.ask(max_tokens=1, token_seconds=30))
    await until(lambda: stage.one.performance and stage.one.performance.in_flight, "in flight")
    stage.one.role(pb.ROLE_DRAINING, 2, 0.2)
    response = await asking
    assert response.status_code == 503
    assert "grace period" in response.json()["error"]["message"]
    await stage.phase(stage.one, pb.PHASE_EXITED)
    assert engine.process.returncode is None, "drained without SIGTERM: gated again"


@pytest.mark.parametrize("phase", ["gated", "active"])
async def test_stop_ends_with_its_code(stage: Stage, phase: str) -> None:
    stage.agent.go = phase == "active"
    engine = await stage.engine(stage.one)
    await until(lambda: stage.one.hello, "hello")
    if phase == "active":
        await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    stage.one.say(stop=pb.Stop(exit_code=3, reason="revision 0123abcd is not of this slot"))
    assert await engine.exit() == 3
    assert "ling-engine: revision 0123abcd is not of this slot" in engine.log


async def test_a_stale_term_is_not_obeyed(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    stage.one.role(pb.ROLE_DRAINING, 0)
    stage.one.say(readiness=pb.Readiness(held_back=True, reason="said later"))
    await until(lambda: readiness(engine) == "active; said later", "what was said behind it")
    assert (await stage.ask()).status_code == 200
    assert stage.one.phase() == pb.PHASE_ACCEPTING


@pytest.mark.parametrize(
    ("flags", "shape", "code", "says"),
    [
        pytest.param((), {"fail_at": "load"}, 2, "told to fail at load", id="load-fails"),
        pytest.param(("--model-revision", f"sha256:{'0' * 64}"), {}, 7, "model.revision states", id="revision"),
        pytest.param((), {"fail_at": "warm-up"}, None, "", id="fill-does-not-warm-up"),
    ],
)
async def test_fill_ends_with_the_servers_code(
    stage: Stage, flags: tuple[str, ...], shape: dict[str, Any], code: int | None, says: str
) -> None:
    engine = await stage.engine(stage.one, *flags, command="fill", **shape)
    assert await engine.exit() == (code or 0)
    if code is None:
        assert all(held.manifest is not None for held in stage.agent.sets.values())
        assert stage.one.hello is not None
        assert stage.one.hello.purpose == pb.PURPOSE_FILL
    assert says in engine.log


async def test_a_bad_model_ends_run_with_2_before_any_hello(stage: Stage) -> None:
    engine = await stage.engine(stage.one, fail_at="describe")
    assert await engine.exit() == 2
    assert "ling-engine: told to fail at describe" in engine.log
    assert stage.one.hello is None


async def test_a_checkpoint_that_changed_while_it_was_read_ends_run_and_the_next_start_reads_it_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher described the old files: a server of the same launcher could only be refused."""
    model, answer = stage.tmp / "tiny", stage.agent.answer
    checkpoint.make_model(model)

    def answer_late(pod: Pod, attach: pb.Attach) -> None:
        os.utime(model / tensorfile.SINGLE, ns=(1, 1))
        monkeypatch.undo()
        answer(pod, attach)

    async def started() -> Engine:
        engine = Engine(stage.one.folder, model, "--runtime", "reference", "--context-length", "64")
        stage.engines.append(engine)
        return await engine.start()

    monkeypatch.setattr(stage.agent, "answer", answer_late)
    first = await started()
    assert await first.exit() == CheckpointChanged.exit_code
    last = first.log.splitlines()[-1]
    assert last.startswith("ling-engine: the checkpoint changed while it was read (shards["), "Kubernetes shows it"
    assert len({event.server for event in stage.one.events}) == 1, "no second server, that could only be refused"
    assert stage.one.events[-1].exit_code == CheckpointChanged.exit_code
    stage.agent.sets.clear()
    await started()
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)


async def test_a_server_may_have_more_clients_than_the_usual_1024_descriptors(stage: Stage) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        engine = await stage.engine(stage.one)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    server = await until(lambda: engine.pid("ling-server"), "a server")
    assert psutil.Process(server).rlimit(psutil.RLIMIT_NOFILE) == (limits[1], limits[1])


async def test_a_taken_probe_port_ends_run_with_2_and_one_line(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = await stage.engine(stage.one, "--probe-port", str(port))
        assert await engine.exit() == 2
    assert engine.log == f"ling-engine: --probe-port {port}: cannot listen there: Address already in use\n"


async def test_refused_ends_the_server_with_3(stage: Stage) -> None:
    stage.agent.answer_attach = False
    await stage.engine(stage.one)
    asked = await until(lambda: stage.one.asked, "the question")
    refused = pb.Refused(reason="no room", fields=[pb.FieldDifference(field="dtype", wanted="a", held="b")])
    stage.one.say(attach_answer=pb.AttachAnswer(request=asked[0].request, refused=refused))
    event = await stage.phase(stage.one, pb.PHASE_EXITED)
    assert event.exit_code == 3


def readiness(engine: Engine) -> str:
    return httpx.get(f"http://127.0.0.1:{engine.probes()}/readyz", timeout=90).text.strip()


async def test_a_new_agent_holds_no_pod_back_that_it_does_not_name(stage: Stage) -> None:
    engine = await stage.engine(stage.one)
    await stage.phase(stage.one, pb.PHASE_ACCEPTING)
    stage.one.say(readiness=pb.Readiness(held_back=True, reason="the node is left"))
    await until(lambda: readiness(engine) == "active; the node is left", "held back")
    await stage.agent.stop()
    assert readiness(engine) == "active; the node is left", "nobody has taken it back"
    await stage.agent.start()
    await until(lambda: readiness(engine) == "active", "ready again")


async def test_probes_and_metrics(stage: Stage) -> None:
    stage.agent.go = False
    engine = await stage.engine(stage.one)
    await until(lambda: stage.one.hello, "hello")
    base = f"http://127.0.0.1:{engine.probes()}"
    async with httpx.AsyncClient(base_url=base, timeout=90) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        assert "ling_launcher_phase" in (await client.get("/metrics")).text
        stage.one.say(go=pb.Go())
        await stage.phase(stage.one, pb.PHASE_ACCEPTING)
        await stage.ask()
        assert (await client.get("/readyz")).status_code == 200
        async with asyncio.timeout(90):  # the server's own are left out when it does not tell them within a second
            while "ling_output_tokens_total" not in (text := (await client.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert "ling_output_tokens_total 2.0" in text
        assert 'ling_server_phase_milliseconds{step="attached"}' in text
        assert (await client.get("/nope")).status_code == 404
        assert (await client.post("/livez")).status_code == 405
