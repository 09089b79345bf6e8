"""attach_storm - many engine processes attach one weight set from one node agent; prints the round trip's percentiles.

Real processes: the agent, a keeper, and N clients, each with an open stream and a rank's folder connection of its own.
One client fills the set (memfd); then all attach, spread over a second, and then all at once. A round trip is from the
Attach on the stream to the last descriptor received. `--goal` is for the spread p99 (0: only report).

    python benchmarks/attach_storm.py [--clients 100] [--mib 64] [--rounds 3] [--goal 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / room) for room in ("nodeagent", "api"))]

import grpc  # noqa: E402 - clients are forked after the import, before any use
from tests.support.rank_client import RankClient, TestSet  # noqa: E402
from tests.support.wire import wire_set  # noqa: E402

from ling_api import fdpass  # noqa: E402
from ling_api.v1 import agent_pb2 as pb  # noqa: E402
from ling_api.v1 import agent_pb2_grpc  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

SLOT, REVISION = "bench/storm-0", "aaaaaaaa"
MIB = 1 << 20
OPEN_AT_ONCE = 8


class Client:
    """One engine pod: launcher's stream and rank in one process."""

    def __init__(self, run_dir: Path, number: int, weights: TestSet) -> None:
        self.folder = run_dir / "d" / f"d{number:03d}"
        self.weights = weights
        self.server = f"server-{number}"
        self.out: queue.SimpleQueue[pb.LauncherMessage] = queue.SimpleQueue()
        self.request = 0

    def open(self) -> None:
        self.channel = grpc.insecure_channel(f"unix:{self.folder / 'agent.sock'}")
        grpc.channel_ready_future(self.channel).result(60)  # before the ticket, which lives 5 s
        sock = fdpass.connect(self.folder / "fd.sock", 30)
        fdpass.send(sock, {"op": "hello", "version": 1, "kind": "launcher"})
        ticket, _ = fdpass.receive(sock)
        fdpass.send(sock, {"op": "ready"})
        self.launcher_sock = sock  # back-ups wait in its buffer: this client never reads them
        self.answers = agent_pb2_grpc.NodeAgentStub(self.channel).Engine(self._messages())
        hello = pb.Hello(
            ticket=bytes.fromhex(ticket["ticket"]), revision=REVISION, runtime="bench", purpose=pb.PURPOSE_FILL,
            weights=[wire_set(self.weights)],
        )  # fmt: skip
        self.out.put(pb.LauncherMessage(hello=hello))
        self._expect("go")
        started = pb.ServerEvent(server=self.server, phase=pb.PHASE_STARTED)
        self.out.put(pb.LauncherMessage(server_event=started))
        self.rank = RankClient(self.folder, self.server)

    def _messages(self) -> Iterator[pb.LauncherMessage]:
        while True:
            yield self.out.get()

    def _expect(self, kind: str) -> Any:
        for message in self.answers:
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)
        raise ConnectionError("the stream ended")

    def attach(self) -> Any:
        self.request += 1
        attach = pb.Attach(request=self.request, server=self.server, sets=[self.weights.id])
        self.out.put(pb.LauncherMessage(attach=attach))
        while True:
            answer = self._expect("attach_answer")
            if answer.WhichOneof("answer") != "wait":
                return answer

    def fill(self) -> None:
        answer = self.attach()
        (ticket,) = answer.fill.tickets
        self.rank.deposit(ticket.ticket.hex(), self.weights.id, self.weights.nbytes)
        self.rank.write(self.weights.id, self.weights.identity.digest)
        half = self.weights.nbytes // 2
        self.rank.seal(self.weights.id, self.weights.manifest([half, half]).decode())

    def round_trip(self) -> float:
        """Seconds from Attach to the last descriptor."""
        begin = time.monotonic()
        answer = self.attach()
        assert answer.WhichOneof("answer") == "granted", answer
        name, fds, _ = self.rank.fetch(answer.granted.tickets[0].ticket.hex(), say_mapped=False)
        seconds = time.monotonic() - begin
        assert name == self.weights.id
        self.rank.say({"op": "mapped", "set": name})
        fdpass.close_all(fds)
        return seconds


def client_main(run_dir: Path, number: int, weights: TestSet, pipe: Connection) -> None:
    """Commands by the pipe: ("open",), ("fill",) or ("attach", start, delay); answers seconds."""
    client = Client(run_dir, number, weights)
    while True:
        command = pipe.recv()
        if command[0] == "open":
            client.open()
            pipe.send(0.0)
        elif command[0] == "fill":
            client.fill()
            pipe.send(0.0)
        elif command[0] == "attach":
            time.sleep(max(0.0, command[1] + command[2] - time.monotonic()))
            pipe.send(client.round_trip())
        else:
            pipe.close()
            os._exit(0)  # gRPC's threads need no farewell


async def agent_main(run_dir: Path, clients: int, nbytes: int) -> None:
    """The agent's process: a whole agent with a fixed directory."""
    from ling_nodeagent.directory import Caller, SlotSpec
    from ling_nodeagent.hub import Agent

    class Silent:
        def publish(self, slot: str, status: object) -> None:
            """Nobody reads it."""

    agent = Agent(run_dir, Silent(), devices=clients + 1, recover_min=0.1, recover_max=0.2)
    await agent.start()
    callers = {"d000": Caller(device="d000", namespace="bench", pod="storm-0", uid="keeper", slot=SLOT,
                              component="slot", revision="")}  # fmt: skip
    for number in range(1, clients + 1):
        device = f"d{number:03d}"
        callers[device] = Caller(
            device=device, namespace="bench", pod=f"engine-{number}", uid=f"uid-{number}", slot=SLOT,
            component="engine", revision=REVISION,
        )  # fmt: skip
    agent.callers_changed(callers)
    agent.slots_changed({
        SLOT: SlotSpec(name=SLOT, deployment="storm", revision=REVISION, revisions=frozenset({REVISION}),
                       capacity=nbytes, grace_seconds=5, hold_seconds=5)
    })  # fmt: skip
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(json.dumps({"fills": agent.counters.fills, "answers": dict(agent.counters.answers)}), flush=True)
    await agent.stop()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def storm(pipes: list[Connection], spread: float) -> list[float]:
    start = time.monotonic() + 0.5
    for number, pipe in enumerate(pipes):
        pipe.send(("attach", start, spread * number / len(pipes)))
    return [pipe.recv() * 1000 for pipe in pipes]


def start_clients(run_dir: Path, count: int, weights: TestSet) -> tuple[list[Any], list[Connection]]:
    context = multiprocessing.get_context("fork")
    children, pipes = [], []
    for number in range(1, count + 1):
        ours, theirs = context.Pipe()
        child = context.Process(target=client_main, args=(run_dir, number, weights, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append(child)
        pipes.append(ours)
    for first in range(0, count, OPEN_AT_ONCE):  # more would start gRPC at once than tickets live
        for pipe in pipes[first : first + OPEN_AT_ONCE]:
            pipe.send(("open",))
        for pipe in pipes[first : first + OPEN_AT_ONCE]:
            pipe.recv()
    return children, pipes


def measure(options: argparse.Namespace, run_dir: Path, agent: subprocess.Popen[bytes]) -> dict[str, float]:
    weights = TestSet(name="storm", nbytes=options.mib * MIB)
    children, pipes = start_clients(run_dir, options.clients, weights)
    figures: dict[str, float] = {}
    try:
        pipes[0].send(("fill",))
        pipes[0].recv()
        for name, spread in (("spread", 1.0), ("burst", 0.0)):
            times = [value for _ in range(options.rounds) for value in storm(pipes, spread)]
            figures |= {f"{name}_p50_ms": percentile(times, 0.5), f"{name}_p99_ms": percentile(times, 0.99)}
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(b"\n")
        agent.stdin.flush()
        figures["fills"] = json.loads(agent.stdout.readline())["fills"]
    finally:
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.send(("stop",))
        for child in children:
            child.join(5)
    return figures


def report(figures: dict[str, float], goal: float) -> bool:
    """One line per figure: name, value, unit, goal, verdict."""
    goals = {"spread_p99_ms": goal, "fills": 1}
    good = True
    for name, value in figures.items():
        limit = goals.get(name)
        ok = not limit or value <= limit
        good = good and ok
        unit = "ms" if name.endswith("_ms") else "count"
        print(f"attach_storm.{name} {value:.2f} {unit} {limit or '-'} {'ok' if ok else 'MISS'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--goal", type=float, default=20.0, help="for the spread p99, in ms")
    parser.add_argument("--agent", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent:
        asyncio.run(agent_main(options.agent, options.clients, options.mib * MIB))
        return 0
    with tempfile.TemporaryDirectory(prefix="ling-storm-", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        run_dir = Path(folder)
        passed = ["--clients", str(options.clients), "--mib", str(options.mib)]
        agent = subprocess.Popen(
            [sys.executable, __file__, "--agent", folder, *passed], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(agent.wait)
        stack.callback(agent.kill)
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
        keeper = subprocess.Popen(
            [sys.executable, "-m", "ling_nodeagent.keeper"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:3]), "LING_RUN": str(run_dir / "d/d000"),
                 "LING_ADDRESS": "127.0.0.1", "LING_PORT": "18700", "LING_PROBE_PORT": "18702"},
        )  # fmt: skip
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)
        return 0 if report(measure(options, run_dir, agent), options.goal) else 1


if __name__ == "__main__":
    sys.exit(main())
