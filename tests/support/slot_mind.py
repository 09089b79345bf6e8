"""One slot's pure machine with time at hand: events in, decisions out, and short words for long events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_api.identity import Identity, set_id
from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.decide import decide, reduce
from ling_nodeagent.directory import Caller, SlotSpec, Wish
from ling_nodeagent.facts import Launcher, Phase, Role, Slot, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOT = "ns/demo-0"
OLD, NEW = "aaaaaaaa", "bbbbbbbb"
KEEPER = 1  # its first connection


def wanted(name: str, nbytes: int = 100, role: str = "target", rank: int = 0) -> Wanted:
    identity = Identity.of(role, {"name": name})
    return Wanted(set=set_id(identity.digest, rank), role=role, rank=rank, nbytes=nbytes, identity=identity.to_bytes())


A, B, C = wanted("a"), wanted("b"), wanted("c")


def spec(**changes: Any) -> SlotSpec:
    fields: dict[str, Any] = {
        "name": SLOT, "deployment": "demo", "revision": OLD, "revisions": frozenset({OLD, NEW}), "capacity": 1000,
        "grace_seconds": 5.0, "hold_seconds": 30.0,
    }  # fmt: skip
    return SlotSpec(**{**fields, **changes})


def caller(pod: str, component: Any = "engine", device: str = "d001") -> Caller:
    return Caller(
        device=device, namespace="ns", pod=pod, uid=f"uid-{pod}", slot=SLOT, component=component, revision=OLD
    )


class Mind:
    """`said` is everything decided; `post` returns what that event led to. Connections are numbered by `new`."""

    def __init__(self, *, recovering: bool = False, **changes: Any) -> None:
        self.now = 100.0
        self.numbers = 0
        self.said: list[do.Decision] = []
        self.wake: float | None = None
        since = self.now if recovering else self.now - 60
        self.slot = Slot(name=SLOT, since=since)
        self.pods: dict[str, Caller] = {}
        self.post(events.SpecChanged(spec=spec(**changes)))

    def new(self) -> int:
        self.numbers += 1
        return self.numbers

    def post(self, event: events.Event) -> list[do.Decision]:
        self.slot = reduce(self.slot, event, self.now)
        return self.think()

    def think(self) -> list[do.Decision]:
        self.slot, out, self.wake = decide(self.slot, self.now)
        self.said += out
        for each in out:  # the hub closes its copies at once
            if isinstance(each, do.DropSet):
                out += tuple(self.post(events.AgentClosed(set=each.set)))
        return list(out)

    def later(self, seconds: float) -> list[do.Decision]:
        self.now += seconds
        return self.think()

    def spec(self, **changes: Any) -> list[do.Decision]:
        assert self.slot.spec is not None
        held = {name: getattr(self.slot.spec, name) for name in SlotSpec.__slots__}
        return self.post(events.SpecChanged(spec=SlotSpec(**{**held, **changes})))

    def wish(self, pod: str, term: int | None = None) -> list[do.Decision]:
        return self.spec(wish=Wish(pod=pod, term=self.slot.term if term is None else term))

    def know(self, pod: str, component: Any = "engine") -> None:
        self.pods[pod] = caller(pod, component, f"d{len(self.pods):03d}")
        self.post(events.CallersChanged(callers=tuple(self.pods.values())))

    def forget(self, pod: str) -> list[do.Decision]:
        del self.pods[pod]
        return self.post(events.CallersChanged(callers=tuple(self.pods.values())))

    def keeper(self, *, netns: int = 7, ready: bool = True, listens: bool = True) -> int:
        """It connects, gives back nothing, and listens."""
        if "keeper" not in self.pods:
            self.know("keeper", "slot")
        conn = self.new()
        self.post(events.KeeperHello(conn=conn, uid="uid-keeper", netns=netns))
        if ready:
            self.post(events.Ready(conn=conn))
        if listens:
            self.post(events.ListenerHeld(conn=conn, netns=netns))
        return conn

    def engine(
        self,
        pod: str,
        sets: Sequence[Wanted] = (A,),
        *,
        plan: int = 0,
        revision: str = OLD,
        role: Role = Role.GATED,
        term: int = 0,
        server: str = "",
        phase: Phase | None = None,
        serves: bool = True,
    ) -> Launcher:
        """A launcher connects both ways and says hello."""
        if pod not in self.pods:
            self.know(pod)
        conn = self.new()
        self.post(events.LauncherConnected(conn=conn, uid=f"uid-{pod}", pod=pod))
        self.post(events.Ready(conn=conn))
        self.post(
            events.LauncherHello(
                stream=self.new(), uid=f"uid-{pod}", pod=pod, revision=revision, serves=serves, plan={"kv": plan},
                weights=tuple(sets), role=role, term=term, server=server, phase=phase,
                sets=tuple(each.set for each in sets) if server else (),
            )
        )  # fmt: skip
        return self[pod]

    def __getitem__(self, pod: str) -> Launcher:
        return self.slot.launchers[f"uid-{pod}"]

    def fork(self, pod: str, server: str) -> int:
        """The server starts and its rank connects; returns the rank's connection."""
        self.says(pod, server, Phase.STARTED)
        conn = self.new()
        self.post(events.RankConnected(conn=conn, uid=f"uid-{pod}", server=server, rank=0))
        return conn

    def says(self, pod: str, server: str, phase: Phase, **fields: Any) -> list[do.Decision]:
        return self.post(events.ServerChanged(stream=self[pod].stream, server=server, phase=phase, **fields))

    def attach(self, pod: str, server: str, sets: Sequence[Wanted] = (A,), request: int = 1) -> Any:
        """The answer that comes at once; None when there is none."""
        names = tuple(each.set for each in sets)
        self.post(events.AttachAsked(stream=self[pod].stream, request=request, server=server, sets=names))
        return self.answer(pod, request)

    def answer(self, pod: str, request: int = 1) -> Any:
        """The last answer to that launcher's request."""
        stream = self[pod].stream
        found = [
            each.answer
            for each in self.said
            if isinstance(each, do.AnswerAttach) and each.stream == stream and each.request == request
        ]
        return found[-1] if found else None

    def deposit(self, conn: int, what: Wanted = A, *, stored: bool = True) -> list[do.Decision]:
        out = self.post(
            events.Deposited(conn=conn, re=1, set=what.set, kind="memfd", part=0, sizes=(what.nbytes,), last=True)
        )
        if stored:
            assert self.slot.keeper is not None
            out += self.post(events.Stored(conn=self.slot.keeper.conn, set=what.set, part=0))
        return out

    def seal(self, conn: int, what: Wanted = A) -> list[do.Decision]:
        out = self.post(events.Sealed(conn=conn, re=2, set=what.set))
        if self.slot.keeper is not None:
            out += self.post(events.ManifestStored(conn=self.slot.keeper.conn, set=what.set))
        return out

    def start(self, pod: str, server: str, sets: Sequence[Wanted] = (A,)) -> int:
        """From go to warm, filling what is missing; returns the rank's connection."""
        conn = self.fork(pod, server)
        answer = self.attach(pod, server, sets)
        if isinstance(answer, do.Fill):
            for each in sets:
                if each.set in answer.sets:
                    self.deposit(conn, each)
                    self.seal(conn, each)
        self.says(pod, server, Phase.ATTACHED)
        self.says(pod, server, Phase.WARM)
        return conn

    def serve(self, pod: str, server: str, sets: Sequence[Wanted] = (A,)) -> int:
        """From go to accepting; returns the rank's connection."""
        conn = self.start(pod, server, sets)
        self.says(pod, server, Phase.ACCEPTING)
        return conn

    def die(self, conn: int) -> list[do.Decision]:
        return self.post(events.PeerDead(conn=conn))

    def drops_acknowledged(self) -> None:
        """Keeper and launchers close every copy that they were told to."""
        for held in list(self.slot.sets.values()):
            for conn in held.told:
                self.post(events.Dropped(conn=conn, set=held.set))

    def of[T](self, kind: type[T]) -> list[T]:
        return [each for each in self.said if isinstance(each, kind)]
