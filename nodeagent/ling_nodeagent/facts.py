"""What the agent knows about one slot, as one frozen value: `Slot`.

`decide.reduce` makes the next value from an event, `decide.decide` reads it and says what to do. Nothing here touches
a descriptor, a clock or a socket: connections and streams are numbers, processes are connections whose death the
kernel reports, sets are set ids ("<digest>:<rank>").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from .mappings import with_item
from .startup import NOT_SEEN, Silence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .directory import Caller, SlotSpec

AGENT = 0  # the agent's own place among a set's holders; connections count from 1


class SetState(StrEnum):
    FILLING = "filling"
    SEALED = "sealed"
    DROPPING = "dropping"


class Role(StrEnum):
    """`starting` is told to nobody: to the launcher and in status it is still gated."""

    GATED = "gated"
    STARTING = "starting"  # go was said, or a server lives that is not warm yet
    WARM = "warm"
    ACTIVE = "active"
    DRAINING = "draining"


class Phase(StrEnum):
    """Of a server; the order of definition is the order of life."""

    STARTED = "started"
    FILLING = "filling"
    ATTACHED = "attached"
    WARM = "warm"
    ACCEPTING = "accepting"
    DRAINING = "draining"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The regions of one deposit frame, as the agent holds them and the keeper must."""

    sizes: tuple[int, ...]
    sent: int = 0  # the keeper connection that it was sent to
    stored: bool = False  # by that keeper
    paid: bool = False  # stored by some keeper, perhaps one that is dead: the filler may have written
    reply: tuple[int, int] | None = None  # (connection, re) that waits for `stored`


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """One weight set that somebody holds, fills or still has to close."""

    set: str
    kind: str
    role: str = ""
    rank: int = 0
    nbytes: int = 0
    state: SetState = SetState.FILLING
    filler: str = ""  # the server that fills it
    progress: float = 0.0
    parts: tuple[Part, ...] = ()
    holders: frozenset[int] = frozenset()  # AGENT and connections (of keeper, launchers) that have copies
    attached: frozenset[str] = frozenset()  # servers that were given it
    backed: frozenset[int] = frozenset()  # launcher connections that it was sent to, or that gave it back
    manifest_sent: int = 0  # the keeper connection that has the manifest or was sent it
    manifest_stored: bool = False  # by that keeper
    identity: bytes = b""
    seal_reply: tuple[int, int] | None = None  # (connection, re) that waits for `sealed`
    refused: tuple[tuple[int, int], ...] = ()  # (connection, re) whose fill has ended otherwise
    told: frozenset[int] = frozenset()  # holders that were told to drop
    reason: str = ""  # why it is being dropped
    condemned: str = ""  # why nobody is given it any more; it goes when the last that has it is dead
    device_error_at: float | None = None  # when the last server that had it died of its device

    @property
    def replies(self) -> tuple[tuple[int, int], ...]:
        """Who waits for `stored` or `sealed`."""
        waiting = [part.reply for part in self.parts] + [self.seal_reply]
        return tuple(reply for reply in waiting if reply is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A weight set that a launcher's server will attach."""

    set: str
    role: str
    rank: int
    nbytes: int
    identity: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A connection of one process of a server; it stays here until that process is dead."""

    conn: int
    uid: str
    server: str
    rank: int
    front: bool = False  # it asked for the listener: the process that accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    id: str
    phase: Phase = Phase.STARTED
    phases: Mapping[str, float] = field(default_factory=dict)  # ms since the fork, by phase
    progress: float = 0.0  # of its fill
    silence: Silence = field(default_factory=Silence)
    dead: bool = False  # one of its ranks is, or it is as good as dead; it stays until all are
    dead_at: float = 0.0
    kills: int = 0  # how often its launcher was told to kill it
    killed_at: float = 0.0  # when it was last told; -inf: it named it again since
    tokens: bool = False  # a request got its first token
    claims: frozenset[str] = frozenset()  # sets that it says it has attached or is filling
    listener: int = 0  # netns of the listener that it was given
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    in_flight: int = 0
    requests: int = 0
    output_tokens: int = 0
    tpot_ms: float = 0.0
    ttft_ms: float = 0.0
    accept_length: float = 0.0  # 0 = nothing was verified
    patience_ms: float = 0.0  # a silence that is longer means that it hangs; 0: not known
    proofs: int = 0  # that it gave while parked
    proof_every_ms: float = 0.0  # 0: it gives none
    failed: int = 0
    arrivals: int = 0  # connections that it accepted and on which a generation was asked for
    draft_tokens: int = 0  # rows that are verified a round; 0: none, or not known
    samples: int = 0  # recent requests that the means are of
    window_seconds: float = 0.0  # in which they ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An attach request that has no final answer yet."""

    request: int
    server: str
    sets: tuple[str, ...]
    order: int  # arrival, over the whole slot
    told: tuple[str, float] | None = None  # the last Wait: reason, progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One engine pod, from its first word until the pod object is gone."""

    uid: str
    pod: str
    order: int = 0  # of arrival
    stream: int = 0  # 0: no stream
    conn: int = 0  # its folder connection; 0: none
    ready: bool = False  # its give-back is complete
    welcomed: bool = False
    lost_at: float = 0.0  # when its stream broke
    revision: str = ""
    serves: bool = True  # False: fills or attaches once and ends
    plan: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0  # memory of its GPUs; 0 = it uses the host's
    weights: tuple[Wanted, ...] = ()
    role: Role = Role.GATED
    term: int = 0
    server: Server | None = None
    last_server: str = ""  # the last one that died: late words about it are not news
    last_sets: frozenset[str] = frozenset()  # what that one had attached
    asks: tuple[Ask, ...] = ()
    leaving: bool = False
    stop_due: bool = False  # crash loop: it must end
    stopped: bool = False  # Stop was sent
    died: bool = False  # its last server ended unasked, and none was warm since
    deaths: int = 0  # in a row, without a first token
    go_at: float = 0.0  # not before
    last_exit: int | None = None
    silence: float = NOT_SEEN  # the longest, in seconds, of the last start of its that was seen whole
    performance: Performance = Performance()
    heard_at: float = 0.0  # when it last told its performance
    progress_at: float = 0.0  # when it last told of a token, or began to have a request
    arrived_at: float | None = None  # when it last told of a client's arrival
    proved_at: float = 0.0  # when it became warm, or last proved itself
    fault: str = ""  # why its last server was killed: EngineHung, StandbyFailedProof
    fault_at: float = 0.0
    yields: bool = False  # it was told that the active engine is busy
    held_back: bool = False  # it was told not to be ready
    succeeds: bool = False  # its server began to accept while this agent recovered: promoted by the one before

    @property
    def connected(self) -> bool:
        return bool(self.stream and self.conn and self.ready)

    @property
    def through(self) -> bool:
        """Whether its plan takes memory: the gate let it through, or its last server is not quite dead."""
        return self.role is not Role.GATED or self.server is not None

    @property
    def total(self) -> int:
        return sum(self.plan.values())

    @property
    def accepting(self) -> bool:
        return self.role is Role.ACTIVE and self.server is not None and self.server.phase is Phase.ACCEPTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    conn: int
    uid: str
    netns: int
    ready: bool = False
    leaving: bool = False
    leaving_at: float = 0.0
    listens: bool = False  # it holds a listener of its own namespace
    asked_at: float | None = None  # when it was last told to listen
    word: tuple[bool, str] | None = None  # the last probe answer that it was told
    members: tuple[Caller, ...] | None = None  # the last that it was told, with the term
    term: int = 0
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    name: str
    since: float  # when this agent first knew of it: recovering counts from here
    recover_min: float = 1.0
    recover_max: float = 10.0
    recovering: bool = True
    spec: SlotSpec | None = None  # None: not known (yet), or gone
    leaves_by: float | None = None  # spec.leaves_by in the agent's own time
    lame_since: float | None = None  # it is being taken away; its last engine accepts for a while
    lame_over: bool = False
    gone: bool = False  # the LingSlot is deleted
    released: bool = False  # its memory was given back by hand
    gpus: tuple[str, ...] = ()  # UUIDs in rank order, by the last launcher that named any
    pod_gone: bool = False  # the slot pod's object is gone
    callers: tuple[Caller, ...] = ()
    keeper: Keeper | None = None
    launchers: Mapping[str, Launcher] = field(default_factory=dict)  # by pod uid
    ranks: Mapping[int, Rank] = field(default_factory=dict)  # by connection, until the process is dead
    sets: Mapping[str, WeightSet] = field(default_factory=dict)
    term: int = 0
    former: Mapping[int, str] = field(default_factory=dict)  # closed connections of processes not known dead: pod uid
    listener: int = 0  # netns of the listener that the agent holds; 0: none
    listener_told: frozenset[int] = frozenset()  # connections that have it
    listener_asks: tuple[tuple[int, int], ...] = ()  # (connection, re) of ranks that wait for it
    accepted_at: float | None = None  # when somebody last accepted
    queue_since: float | None = None  # since when connections have waited to be accepted, without a break
    sequence: int = 0
    message: str = ""  # the gate's sentence, or the fields that differ
    condemned: str = ""  # the last sentence about a condemned set
    condemned_at: float = 0.0
    doomed: Mapping[str, str] = field(default_factory=dict)  # why, by set: until it is filled anew, under any agent

    @property
    def ending(self) -> bool:
        """Whether the slot's memory is to be given up."""
        if self.pod_gone or self.lame_over or self.released:
            return True
        deleted = self.gone or (self.spec is not None and self.spec.leaving)
        return deleted and not (self.spec is not None and self.spec.retiring and self.lame_since is not None)

    def launcher_of(self, *, server: str = "", stream: int = 0, conn: int = 0) -> Launcher | None:
        """By whichever is given."""
        for each in self.launchers.values():
            if (stream and each.stream == stream) or (conn and each.conn == conn):
                return each
            if server and each.server is not None and each.server.id == server:
                return each
        return None

    def alive(self, server: str) -> bool:
        """Whether a process of the server may still live, hence still map its sets."""
        if any(rank.server == server for rank in self.ranks.values()):
            return True
        launcher = self.launcher_of(server=server)
        return launcher is not None and launcher.server is not None and not launcher.server.dead

    def front_of(self, server: str) -> int:
        """The connection of the server's process that talks HTTP; 0: none. It has the highest rank number.

        A runtime that starts processes of its own numbers those from 0, and its main process after them.
        """
        found = [(rank.rank, rank.conn) for rank in self.ranks.values() if rank.server == server]
        return max(found)[1] if found else 0

    @property
    def strangers(self) -> bool:
        """Whether a rank lives whose launcher has not told of its server yet: it may map anything."""
        known = {each.server.id for each in self.launchers.values() if each.server is not None}
        return any(rank.server not in known for rank in self.ranks.values())

    def put(self, launcher: Launcher) -> Slot:
        return replace(self, launchers=with_item(self.launchers, launcher.uid, launcher))

    def put_set(self, held: WeightSet) -> Slot:
        return replace(self, sets=with_item(self.sets, held.set, held))
