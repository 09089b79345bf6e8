"""A slot of real processes - agent, keeper, engines - brought to a step of its life, so that a test can kill some.

Engines run in a PID namespace of their own where the kernel lets us, as in a pod: PID 1's death is everybody's. What
was killed is started again as the kubelet would: the same pod, hence the same device folder.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hack.ports import free_port
from tests.support import standin, witness

from ling_api.errors import AgentUnreachable
from ling_nodeagent.__main__ import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.nursery import Nursery

ALONE = ("server", "zygote", "launcher", "agent", "keeper")
VICTIMS = (*((one,) for one in ALONE), *itertools.combinations(ALONE, 2))
STEPS = ("fill", "wait", "go", "attach", "serve")
POLL = 0.02
PATIENCE = 30.0  # seconds from a death until all is whole; more on a machine that is slow for other reasons
START = 150.0  # seconds until all programs have imported everything
SLOT, REVISION = "ns/demo-0", "aaaaaaaa"
SHAPE = {"nbytes": 3 << 20, "plan_bytes": 8 << 20, "token_seconds": 0.001}
Words = dict[str, Any]


class Program:
    """One process of ours, or PID 1 of a namespace, and its children."""

    def __init__(
        self, nursery: Nursery, program: str, argv: Sequence[str], env: Words, log: Path, *, pod: bool = False
    ) -> None:
        self._nursery = nursery
        self._wrapped = pod and nursery.namespaces
        self.leader = nursery.start(program, argv, env, log, namespace=self._wrapped)

    @property
    def pid(self) -> int:
        """0 when it does not live."""
        if self._wrapped:
            return next(iter(witness.children(self.leader)), 0)
        return self.leader if witness.name_of(self.leader) else 0

    def below(self, name: str) -> int:
        """The child that gave itself this name; 0 when there is none."""
        found = [each for each in witness.children(self.leader) if witness.name_of(each) == name]
        return found[-1] if found else 0

    def all(self) -> list[int]:
        """What dies with it: in a namespace the kernel sees to it."""
        return [self.pid] if self._wrapped else [self.pid, *witness.children(self.leader)]

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGTERM)

    def exit(self, seconds: float = 90.0) -> int:
        """The exit code; that of a signal as a shell says it."""
        return self._nursery.reap(self.leader, seconds)


class Engine:
    """One engine pod: its folder, its gates, its container's processes."""

    def __init__(self, ground: Ground, device: str, pod: str, command: str = "run") -> None:
        self._ground = ground
        self.device = device
        self.pod = pod
        self.command = command
        self.flags: list[str] = []
        self.gates = ground.folder / f"gates-{pod}"
        self.gates.mkdir()
        self.log = ground.folder / f"{pod}.log"
        self.program: Program

    def start(self) -> Engine:
        """The container's first start, or the next one."""
        argv = [self.command, "--model", str(self._ground.model), "--revision", REVISION]
        argv += ["--run-dir", str(self._ground.run / "d" / self.device), "--probe-port", "0"]
        argv += ["--runtime", self._ground.runtime, "--context-length", "64", *self.flags]
        env = {"LING_STANDIN_GATES": str(self.gates), **self._ground.env}
        self.program = self._ground.run_program("ling_engine", argv, env, self.log, pod=True)
        return self

    def hold(self, step: str) -> None:
        (self.gates / f"{step}.reached").unlink(missing_ok=True)
        (self.gates / f"{step}.hold").touch()

    def let_go(self, *steps: str) -> None:
        """These gates, all by default."""
        for hold in self.gates.glob("*.hold"):
            if not steps or hold.stem in steps:
                hold.unlink()

    def at(self, step: str) -> bool:
        return (self.gates / f"{step}.reached").exists()

    @property
    def launcher(self) -> int:
        return self.program.pid

    def process(self, name: str) -> int:
        return self.program.below(f"ling-{name}")


class Ground:
    """Owns a folder, an agent, a keeper and engines; `close` ends whatever is left of them."""

    def __init__(self, nursery: Nursery, runtime: str, model: Path | None = None) -> None:
        self._nursery = nursery
        self.programs: list[Program] = []
        self.folder = Path(tempfile.mkdtemp(prefix="ling-", dir="/tmp"))  # a socket's path must be short
        self.run = self.folder / "run"
        self.model = model or standin.write_model(self.folder / "model", **SHAPE)
        self.runtime = runtime
        self.journal = self.folder / "journal"
        self.env = {"LING_JOURNAL": str(self.journal)}
        self.port, self.probe_port = free_port(), free_port()
        self.engines: list[Engine] = []
        self.asked: Words = {}  # of the slot, beside what is always asked
        self.agent: Program
        self.keeper: Program
        self.patience = START
        self.term = 0  # the highest that was seen
        for device in ("d000", "d001", "d002"):
            (self.run / "d" / device).mkdir(parents=True)  # a pod's folder is there before its processes are
        self.direct()

    # what the node's edges say

    def direct(self, *, empty: bool = False) -> None:
        slot = {"deployment": "demo", "revision": REVISION, "capacity": "64Mi", "graceSeconds": 5, "holdSeconds": 30}
        slot |= self.asked
        callers = {"d000": {"pod": "demo-0", "uid": "u0", "slot": SLOT, "component": "slot"}}
        for each in self.engines:
            pod = {"pod": each.pod, "uid": f"uid-{each.pod}", "slot": SLOT, "component": "engine", "revision": REVISION}
            callers[each.device] = pod
        new = self.folder / "new.yaml"
        new.write_text(yaml.safe_dump({} if empty else {"slots": {SLOT: slot}, "callers": callers}))
        new.replace(self.folder / "static.yaml")

    # processes

    def start_agent(self) -> None:
        argv = ["serve", "--static", str(self.folder / "static.yaml"), "--run-dir", str(self.run)]
        self.agent = self.run_program("ling_nodeagent", argv, self.env, self.folder / "agent.log")

    def start_keeper(self) -> None:
        env = {
            "LING_RUN": str(self.run / "d" / "d000"), "LING_PORT": str(self.port), "LING_ADDRESS": "127.0.0.1",
            "LING_PROBE_PORT": str(self.probe_port), **self.env,
        }  # fmt: skip
        self.keeper = self.run_program("ling_nodeagent.keeper", (), env, self.folder / "keeper.log")

    def run_program(self, program: str, argv: Sequence[str], env: Words, log: Path, *, pod: bool = False) -> Program:
        started = Program(self._nursery, program, argv, env, log, pod=pod)
        self.programs.append(started)
        return started

    def engine(self, pod: str, command: str = "run") -> Engine:
        engine = Engine(self, {"one": "d001", "two": "d002"}[pod], pod, command)
        self.engines.append(engine)
        self.direct()
        return engine

    def kill(self, victims: Sequence[str]) -> set[str]:
        """Kills these processes of the first engine, agent and keeper; returns which programs must be started again."""
        first = self.engines[0]
        find: dict[str, Callable[[], list[int]]] = {
            "server": lambda: [first.process("server")],
            "zygote": lambda: [first.process("zygote")],
            "launcher": first.program.all,
            "agent": lambda: [self.agent.pid],
            "keeper": lambda: [self.keeper.pid],
        }
        pids = {pid for victim in victims for pid in find[victim]()}
        assert 0 not in pids, f"one of {victims} does not live: {self.story()}"
        witness.kill(pids)
        programs = {"launcher": first.program, "agent": self.agent, "keeper": self.keeper}
        again = programs.keys() & set(victims)
        for name in again:
            programs[name].exit()
        return again

    def start_again(self, programs: set[str]) -> None:
        if "agent" in programs:
            self.start_agent()
        if "keeper" in programs:
            self.start_keeper()
        if "launcher" in programs:
            self.engines[0].start()

    # what is seen

    def status(self) -> Words:
        """Of the slot; {} while the agent is away. A term lower than one seen before is a failure."""
        try:
            found: Words = ask(self.run / "status.sock")["slots"].get(SLOT, {})
        except AgentUnreachable:
            return {}
        if found and not self.condition(found, "Recovering"):
            term = found["active"]["term"]
            assert term >= self.term, f"the term went back from {self.term} to {term}: {self.story()}"
            self.term = term
        return found

    @staticmethod
    def condition(status: Words, kind: str) -> bool:
        return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions", ()))

    def serving(self, status: Words | None = None) -> bool:
        return self.condition(self.status() if status is None else status, "Serving")

    def events(self) -> Counter[str]:
        """How often each event is in the journal."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return Counter(json.loads(line)["event"] for line in text.splitlines())

    def ask(self, **body: Any) -> str:
        """One request on a connection of its own; the answer's text. Raises OSError, AssertionError."""
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        try:
            body = {"model": self.model.name, "prompt": "a", "max_tokens": 2, **body}
            asking.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = asking.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return str(json.loads(text)["choices"][0]["text"])
        finally:
            asking.close()

    def holders(self) -> dict[str, int]:
        """Who should hold a copy of everything, by pid."""
        found = {"agent": self.agent.pid, "keeper": self.keeper.pid}
        return found | {f"launcher {each.pod}": each.launcher for each in self.engines}

    def story(self, last: int = 3000) -> str:
        """What the processes logged: the last characters of each."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-last:]}" for log in logs)

    def until(self, look: Any, what: str, seconds: float = 90.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > deadline:
                seen = f"status {self.status()}\njournal {self.events()}\n{self.story()}"
                raise AssertionError(f"waited {seconds:.1f} s in vain for: {what}\n{seen}")
            time.sleep(POLL)
        return found

    def alive(self) -> dict[int, str]:
        """Every process of ours."""
        return witness.sessions(each.leader for each in self.programs)

    def close(self) -> None:
        """Ends what a failed test has left."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for program in self.programs:
            program.exit()
        shutil.rmtree(self.folder, ignore_errors=True)


def prepared(nursery: Nursery, step: str, runtime: str, model: Path | None = None) -> Ground:
    """A slot whose first engine's server stands still at that step; the second engine waits, but for `attach`."""
    began = time.monotonic()
    ground = Ground(nursery, runtime, model)
    try:
        first = ground.engine("one")
        ground.start_agent()
        ground.start_keeper()
        first.hold("open")
        first.start()
        ground.until(lambda: first.at("open"), "the first server", START)
        PREPARE[step](ground)
        ground.until(lambda: listener_spread(ground), "everybody holds the listener")
        ground.patience = max(PATIENCE, 5 * (time.monotonic() - began))
    except BaseException:
        ground.close()
        raise
    return ground


def _go(ground: Ground) -> None:
    """Between Go and Attach; a second engine is gated."""
    ground.engine("two").start()
    ground.until(lambda: len(ground.status().get("engines", ())) == 2, "the second engine is gated", START)


def _fill(ground: Ground) -> None:
    """Half of the bytes are written; a second engine is gated."""
    _half_filled(ground)
    _go(ground)


def _half_filled(ground: Ground) -> None:
    first = ground.engines[0]
    first.hold("load")
    first.let_go("open")
    ground.until(lambda: first.at("load"), "half of the bytes are written")


def _wait(ground: Ground) -> None:
    """As fill, and the server of a second filler has asked for the same set."""
    _half_filled(ground)
    ground.engine("two", "fill").start()
    ground.until(lambda: _waits(ground), "the second server waits", START)


def _waits(ground: Ground) -> bool:
    return any(each["pod"] == "two" and "waiting" in each["phases"] for each in ground.status().get("engines", ()))


def _serve(ground: Ground) -> None:
    """The first engine serves and has answered; a second engine is gated."""
    ground.engines[0].let_go()
    _go(ground)
    _answered(ground)


def _answered(ground: Ground) -> None:
    """A first token has been said of the server, so its death begins no crash loop."""
    ground.ask()
    ground.until(lambda: any(each["requests"] for each in ground.status().get("engines", ())), "the request is counted")


def _attach(ground: Ground) -> None:
    """The only engine served, its server was killed, and the next has mapped the set but bound nothing."""
    first = ground.engines[0]
    first.let_go()
    _answered(ground)
    ground.until(lambda: held_by_all(ground), "everybody holds the set")
    first.hold("bind")
    witness.kill([first.process("server")])
    ground.until(lambda: first.at("bind"), "the next server maps the set")


def held_by_all(ground: Ground) -> bool:
    return all(len(witness.memory(pid)) == 2 for pid in ground.holders().values())


def listener_spread(ground: Ground) -> bool:
    """Agent, keeper and launchers have the slot's socket."""
    return all(listener_of(pid, ground.port) for pid in ground.holders().values())


def listener_of(pid: int, port: int) -> int:
    """How many descriptors of the socket that listens on that port the process has."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port}
    return sum(text in {f"socket:[{inode}]" for inode in inodes} for text in witness.descriptors(pid).values())


PREPARE = {"fill": _fill, "wait": _wait, "go": _go, "attach": _attach, "serve": _serve}
