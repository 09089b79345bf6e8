"""Random lives of one slot: pods connect, break off, fill, die, in any order. Rules 1, 2 and 4 hold at every step.

The world below keeps its own books of who holds and maps what, and compares them with what the agent decides. At the
end of every life all is well again: everybody connects and nobody dies, and then somebody must accept.
"""

from __future__ import annotations

import inspect
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.slot_mind import NEW, OLD, A, B, C, caller, spec

from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.decide import decide, reduce
from ling_nodeagent.directory import SlotSpec, Wish
from ling_nodeagent.facts import AGENT, Performance, Phase, Role, SetState, Slot, Wanted
from ling_nodeagent.gate import committed

if TYPE_CHECKING:
    from collections.abc import Callable

PODS = ("one", "two", "three")
WEIGHTS: dict[str, tuple[Wanted, ...]] = {"one": (A,), "two": (A, B), "three": (C,)}
REVISIONS = {"one": OLD, "two": OLD, "three": NEW}
PLAN = 50


@dataclass(eq=False)
class Server:
    """A process with memory of its own: what it maps is free only when it is dead."""

    id: str
    pod: str
    conn: int = 0
    phase: Phase = Phase.STARTED
    asked: bool = False
    filling: list[str] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    maps: set[str] = field(default_factory=set)
    refused: bool = False
    dead: bool = False


@dataclass(eq=False)
class Process:
    """A keeper or launcher: copies, and frames that it has not acted on yet."""

    pod: str
    conn: int = 0
    stream: int = 0
    holds: dict[str, bool] = field(default_factory=dict)  # set -> sealed
    inbox: deque[Any] = field(default_factory=deque)
    role: Role = Role.GATED
    term: int = 0
    told_go: bool = False
    server: Server | None = None


class Life:
    def __init__(self, *, tight: bool, earlier: bool = False) -> None:
        self.earlier = earlier  # launchers of a release that knows no Kill
        self.now = 1000.0
        self.number = 0
        self.keeper = Process("keeper")
        self.launchers = {pod: Process(pod) for pod in PODS}
        self.old: list[Process] = []  # dead container's processes whose death is not told yet
        self.servers: list[Server] = []
        self.by_number: dict[int, Any] = {}
        self.standbys = 0 if tight else 1
        self.spec = self.make_spec(290 if tight else 500)
        self.slot = Slot(name="ns/demo-0", since=self.now - 60)
        self.tell_directory()
        self.slot = replace(self.slot, recovering=False)

    def make_spec(self, capacity: int, **changes: Any) -> SlotSpec:
        return spec(capacity=capacity, standbys=self.standbys, **changes)

    def tell_directory(self) -> None:
        self.post(events.SpecChanged(spec=self.spec))
        everybody = [caller("keeper", "slot", "d000")]
        everybody += [caller(pod, device=f"d00{number}") for number, pod in enumerate(PODS, 1)]
        self.post(events.CallersChanged(callers=tuple(everybody)))

    # the agent

    def new(self, owner: Any) -> int:
        self.number += 1
        self.by_number[self.number] = owner
        return self.number

    def post(self, event: events.Event) -> None:
        self.slot = reduce(self.slot, event, self.now)
        self.think()

    def think(self) -> None:
        before = self.slot
        self.slot, out, _ = decide(before, self.now)
        for name in before.sets.keys() - self.slot.sets.keys():
            self.check_free(name)
        for decision in out:
            self.obey(decision)

    def check_free(self, name: str) -> None:
        """What the agent forgets is held by nobody that it has ever met."""
        assert not any(name in server.maps for server in self.servers if not server.dead), f"{name} is mapped"
        for process in (self.keeper, *self.launchers.values(), *self.old):
            if process.conn or process.conn in self.slot.former:
                assert name not in process.holds, f"{process.pod} still holds {name}"

    def obey(self, decision: do.Decision) -> None:
        match decision:
            case do.AnswerAttach(stream=stream, answer=answer, server=server):
                if stream in self.by_number:
                    self.check_answer(stream, server, answer)
            case do.Go(stream=stream):
                assert committed(self.slot).fits
                self.by_number[stream].told_go = True
            case do.Kill() | do.Stop():
                self.end(decision)
            case do.SetRole(stream=stream, role=role, term=term):
                self.by_number[stream].role, self.by_number[stream].term = role, term
            case (
                do.KeepPart(conn=conn, set=name) | do.BackUp(conn=conn, set=name) | do.KeepManifest(conn=conn, set=name)
            ):
                self.by_number[conn].inbox.append((type(decision).__name__, name, conn))
            case do.DropSet(set=name, conns=conns):
                for conn in conns:
                    self.by_number[conn].inbox.append(("DropSet", name, conn))
                self.post(events.AgentClosed(set=name))
            case do.Answer() | do.AnswerError():
                self.hear(self.by_number[decision.conn], decision)

    def end(self, decision: do.Kill | do.Stop) -> None:
        """Stop ends a container, and another begins."""
        if isinstance(decision, do.Stop):
            server = self.by_number[decision.stream].server
            if server is not None and not server.dead:
                self.container_dies(server.pod)
        elif not self.earlier:
            self.kill_named(decision.server)

    def kill_named(self, name: str) -> None:
        for server in self.servers:
            if server.id == name and not server.dead:
                self.kill(server)

    def hear(self, server: Server, decision: do.Answer | do.AnswerError) -> None:
        """The answer to the filler's deposit or seal."""
        if isinstance(decision, do.AnswerError):
            server.filling.clear()
            server.asked = False
        elif server.filling and decision.op == "stored":
            server.stored.add(server.filling[0])
        elif server.filling:
            server.maps.add(server.filling.pop(0))

    def check_answer(self, stream: int, server_id: str, answer: Any) -> None:
        pod = self.by_number[stream].pod
        server = next(each for each in self.servers if each.id == server_id)
        own = {each.set for each in WEIGHTS[pod]}
        match answer:
            case do.Granted(sets=sets):
                assert set(sets) == own  # the whole cohort, and nothing foreign
                self.fetch(server, sets)
            case do.Fill(sets=sets, granted=granted):
                assert set(sets) | set(granted) == own
                for name in sets:
                    rivals = [each for each in self.servers if each is not server and not each.dead]
                    assert not any(name in each.filling for each in rivals), f"two fill {name}"
                server.filling = [name for name in sets if name not in server.maps]
                self.fetch(server, granted)
            case do.Refused():
                server.refused = True

    def fetch(self, server: Server, sets: tuple[str, ...]) -> None:
        for name in sets:
            assert self.slot.sets[name].state is SetState.SEALED
            assert AGENT in self.slot.sets[name].holders
            server.maps.add(name)

    # keeper and launchers

    def connect(self, process: Process) -> None:
        keeper = process is self.keeper
        uid = f"uid-{process.pod}"
        process.conn = self.new(process)
        process.inbox.clear()
        if keeper:
            self.post(events.KeeperHello(conn=process.conn, uid=uid, netns=7))
        else:
            self.post(events.LauncherConnected(conn=process.conn, uid=uid, pod=process.pod))
        for name, sealed in list(process.holds.items()):
            self.post(events.Has(conn=process.conn, set=name, kind="memfd", sealed=sealed, parts=((100,),)))
        self.post(events.Ready(conn=process.conn))
        if not keeper:
            self.hello(process)

    def hello(self, process: Process) -> None:
        server = process.server if process.server and not process.server.dead else None
        role = process.role if server else Role.GATED
        process.role, process.told_go = role, False
        process.stream = self.new(process)
        if server is not None:
            server.asked = bool(server.phase is not Phase.STARTED)
        self.post(
            events.LauncherHello(
                stream=process.stream, uid=f"uid-{process.pod}", pod=process.pod, revision=REVISIONS[process.pod],
                serves=True, plan={"kv": PLAN}, weights=WEIGHTS[process.pod], role=role, term=process.term,
                server=server.id if server else "", phase=server.phase if server else None,
                sets=tuple(server.maps) if server else (),
            )
        )  # fmt: skip

    def break_off(self, process: Process) -> None:
        conn, stream = process.conn, process.stream
        process.conn = process.stream = 0
        process.inbox.clear()
        if stream:
            self.post(events.StreamGone(stream=stream))
        self.post(events.Disconnected(conn=conn))

    def launcher_connects(self, pod: str) -> None:
        if not self.launchers[pod].conn:
            self.connect(self.launchers[pod])

    def launcher_breaks_off(self, pod: str) -> None:
        if self.launchers[pod].conn:
            self.break_off(self.launchers[pod])

    def keeper_connects(self) -> None:
        if not self.keeper.conn:
            self.connect(self.keeper)

    def keeper_breaks_off(self) -> None:
        if self.keeper.conn:
            self.break_off(self.keeper)

    def keeper_dies(self) -> None:
        self.end_process(self.keeper)
        self.keeper = Process("keeper")

    def container_dies(self, pod: str) -> None:
        process = self.launchers[pod]
        self.launchers[pod] = Process(pod)
        self.end_process(process)
        if process.server is not None and not process.server.dead:
            self.kill(process.server)

    def end_process(self, process: Process) -> None:
        process.holds.clear()
        conn = process.conn or max((c for c, who in self.by_number.items() if who is process), default=0)
        if process.conn:
            self.break_off(process)
        if conn:
            self.post(events.PeerDead(conn=conn))

    def acts(self, pod: str) -> None:
        """Takes one frame from the inbox."""
        process = self.keeper if pod == "keeper" else self.launchers[pod]
        if not process.inbox:
            return
        deed, name, conn = process.inbox.popleft()
        if deed == "DropSet":
            process.holds.pop(name, None)
            self.post(events.Dropped(conn=conn, set=name))
        elif deed == "KeepManifest":
            process.holds[name] = True
            self.post(events.ManifestStored(conn=conn, set=name))
        else:
            process.holds[name] = process.holds.get(name, False) or deed == "BackUp"
            self.post(events.Stored(conn=conn, set=name, part=0))

    # servers

    def forks(self, pod: str) -> None:
        process = self.launchers[pod]
        if not process.told_go or not process.stream:
            return
        process.told_go = False
        self.number += 1
        server = process.server = Server(f"s{self.number}", pod)
        self.servers.append(server)
        self.post(events.ServerChanged(stream=process.stream, server=server.id, phase=Phase.STARTED))
        self.rank_connects(server)

    def rank_connects(self, server: Server) -> None:
        server.conn = self.new(server)
        self.post(events.RankConnected(conn=server.conn, uid=f"uid-{server.pod}", server=server.id, rank=0))

    def goes_on(self, pod: str) -> None:
        """The server takes its next step."""
        process = self.launchers[pod]
        server = process.server
        if server is None or server.dead or not process.stream:
            return
        own = {each.set for each in WEIGHTS[pod]}
        if process.role is Role.DRAINING or server.refused:
            self.kill(server)
        elif server.maps >= own and not server.filling:
            self.advance(process, server)
        elif server.filling:
            self.fill_step(server)
        elif not server.asked:
            server.asked = True
            self.number += 1
            self.post(
                events.AttachAsked(
                    stream=process.stream, request=self.number, server=server.id, sets=tuple(sorted(own))
                )
            )

    def works(self, pod: str, steps: int) -> None:
        """Some quiet moments, in which things go on as they should."""
        for _ in range(steps):
            self.acts("keeper")
            self.acts(pod)
            self.forks(pod)
            self.goes_on(pod)
            self.time_passes(0.2)

    def fill_step(self, server: Server) -> None:
        name = server.filling[0]
        held = self.slot.sets.get(name)
        if held is not None and held.seal_reply is not None:
            return  # the keeper has the manifest to store
        if held is None or held.filler != server.id:
            server.filling.clear()  # this agent does not know of it: the server asks again
            server.asked = False
        elif name not in server.stored:
            self.post(events.Deposited(conn=server.conn, re=1, set=name, kind="memfd", part=0, sizes=(100,), last=True))
        else:
            self.post(events.Sealed(conn=server.conn, re=2, set=name))

    def advance(self, process: Process, server: Server) -> None:
        after = {Phase.STARTED: Phase.ATTACHED, Phase.ATTACHED: Phase.WARM}
        phase = after.get(server.phase)
        if server.phase is Phase.WARM and process.role is Role.ACTIVE:
            phase = Phase.ACCEPTING
        if phase is not None:
            server.phase = phase
            if phase is Phase.WARM and process.role is Role.GATED:
                process.role = Role.WARM
            self.post(events.ServerChanged(stream=process.stream, server=server.id, phase=phase))

    def kill(self, server: Server) -> None:
        server.dead = True
        server.maps.clear()
        server.filling.clear()
        process = self.launchers[server.pod]
        if process.server is server:
            process.role = Role.GATED
        self.post(events.PeerDead(conn=server.conn))

    def server_dies(self, pod: str) -> None:
        server = self.launchers[pod].server
        if server is not None and not server.dead:
            self.kill(server)

    def hangs(self, pod: str) -> None:
        """A request comes, and no token of it, for as long as that takes."""
        process = self.launchers[pod]
        if process.stream and process.server is not None and not process.server.dead:
            silent = Performance(in_flight=1, patience_ms=5000.0, requests=self.number)
            self.post(events.Performed(stream=process.stream, performance=silent))
            self.time_passes(6.0)

    def dying(self, pod: str) -> None:
        """The hint of a death comes before the kernel's word, or without it."""
        server = self.launchers[pod].server
        if server is not None and not server.dead:
            self.post(events.DeathHinted(conn=server.conn))  # the launcher has heard nothing

    def node_is_left(self, seconds: float) -> None:
        self.post(events.SpecChanged(spec=self.spec, leaves_by=self.now + seconds))

    # everything else

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.think()

    def operator_wishes(self, pod: str, revision: str, stale: bool) -> None:
        wish = Wish(pod=pod, term=self.slot.term - stale)
        self.spec = self.make_spec(self.spec.capacity, revision=revision, wish=wish)
        self.post(events.SpecChanged(spec=self.spec))

    def agent_restarts(self) -> None:
        """A new agent knows nothing; all that live reconnect in their own time."""
        self.slot = Slot(name="ns/demo-0", since=self.now)
        for process in (self.keeper, *self.launchers.values()):
            process.conn = process.stream = 0
            process.inbox.clear()
        for server in self.servers:
            server.filling.clear()
            server.stored.clear()
        self.tell_directory()
        for server in self.servers:
            if not server.dead:
                self.rank_connects(server)

    def somebody_serves_if_somebody_is_warm(self) -> None:
        if self.slot.recovering or self.slot.ending:
            return
        launchers = self.slot.launchers.values()
        if not any(each.role is Role.ACTIVE for each in launchers):
            assert not any(each.role is Role.WARM and each.connected and not each.stop_due for each in launchers)

    def only_sealed_sets_are_attached(self) -> None:
        for held in self.slot.sets.values():
            assert not held.attached or held.state is not SetState.FILLING
            assert held.state is not SetState.FILLING or not held.seal_reply

    def end_well(self) -> None:
        """From here on nothing fails."""
        self.spec = self.make_spec(self.spec.capacity)
        self.post(events.SpecChanged(spec=self.spec))
        for _ in range(60):
            for process in (self.keeper, *self.launchers.values()):
                if not process.conn:
                    self.connect(process)
            for pod in (*PODS, "keeper"):
                while (self.keeper if pod == "keeper" else self.launchers[pod]).inbox:
                    self.acts(pod)
            for pod in PODS:
                self.forks(pod)
                self.goes_on(pod)
            self.time_passes(1.0)
            accepting = [each for each in self.slot.launchers.values() if each.accepting]
            if len(accepting) == 1 and not any(each.role is Role.DRAINING for each in self.slot.launchers.values()):
                break
        crashing = all(each.stop_due for each in self.slot.launchers.values())
        assert crashing or any(each.accepting for each in self.slot.launchers.values()), self.slot


WEIGHTS_OF_STEPS: dict[str, float] = {
    "hangs": 0.5, "dying": 0.7, "node_is_left": 0.2,
    "works": 14, "launcher_connects": 3, "keeper_connects": 2, "launcher_breaks_off": 1, "keeper_breaks_off": 1,
    "keeper_dies": 0.7, "container_dies": 0.7, "server_dies": 2, "time_passes": 2, "operator_wishes": 2,
    "agent_restarts": 0.5,
}  # fmt: skip
ARGUMENTS: dict[str, Callable[[random.Random], Any]] = {
    "pod": lambda source: source.choice(PODS),
    "steps": lambda source: source.randint(1, 10),
    "seconds": lambda source: source.choice((0.1, 1.0, 11.0)),
    "revision": lambda source: source.choice((OLD, NEW)),
    "stale": lambda source: source.random() < 0.2,
}


def life_of(source: random.Random, length: int) -> list[tuple[str, dict[str, Any]]]:
    """Steps in proportion to their weights; hypothesis' own lists hardly ever come as far as serving."""
    drawn = source.choices(list(WEIGHTS_OF_STEPS), list(WEIGHTS_OF_STEPS.values()), k=length)
    return [
        (
            name,
            {arg: ARGUMENTS[arg](source) for arg in inspect.signature(getattr(Life, name)).parameters if arg != "self"},
        )
        for name in drawn
    ]


def live(steps: list[tuple[str, dict[str, Any]]], *, tight: bool, earlier: bool = False) -> Life:
    life = Life(tight=tight, earlier=earlier)
    for name, args in steps:
        getattr(life, name)(**args)
        life.somebody_serves_if_somebody_is_warm()
        life.only_sealed_sets_are_attached()
    return life


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_lives_keep_the_rules_and_end_well(seed: int, tight: bool, earlier: bool) -> None:
    source = random.Random(seed)
    live(life_of(source, source.randint(20, 90)), tight=tight, earlier=earlier).end_well()


def test_a_quiet_life_serves() -> None:
    quiet: list[tuple[str, dict[str, Any]]] = [("keeper_connects", {}), ("launcher_connects", {"pod": "one"})]
    life = live([*quiet, ("works", {"pod": "one", "steps": 10})], tight=True)
    assert life.slot.launchers["uid-one"].accepting
