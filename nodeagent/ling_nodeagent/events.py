"""What happens to a slot, as frozen values: everything that `decide.reduce` understands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .directory import Caller, SlotSpec
    from .facts import Performance, Phase, Role, Wanted


# the directory
@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChanged:
    spec: SlotSpec | None  # None: the LingSlot is gone
    leaves_by: float | None = None  # spec.leaves_by in the agent's own time


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersChanged:
    callers: tuple[Caller, ...]  # of this slot


# folder connections
@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperHello:
    conn: int
    uid: str
    netns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConnected:
    conn: int
    uid: str
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConnected:
    conn: int
    uid: str
    server: str
    rank: int
    same: frozenset[int] = frozenset()  # connections of the same process, also those that have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Has:
    """A keeper or launcher gave a set back, as far as it came."""

    conn: int
    set: str
    kind: str
    sealed: bool
    parts: tuple[tuple[int, ...], ...]  # sizes by part, as the agent's store now has them
    identity: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRemembered:
    """The term that the keeper was told last, perhaps by an earlier agent."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The give-back of a keeper or launcher is complete."""

    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDead:
    """The process behind a connection is dead: its mappings and descriptors are closed."""

    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathHinted:
    """The process behind a rank's connection is dying; its memory is not free yet."""

    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """The agent itself did nothing for a while: what it has not heard meanwhile says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    """How many connections wait in the listener's queue to be accepted."""

    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    conn: int
    set: str
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestStored:
    conn: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    conn: int
    set: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    conn: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClosed:
    """The agent's own copies are closed."""

    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLeaving:
    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerHeld:
    """The agent holds a listener of that namespace, which came from `conn`."""

    conn: int
    netns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoListener:
    conn: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAsked:
    conn: int
    re: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposited:
    conn: int
    re: int
    set: str
    kind: str
    part: int  # in the agent's store
    sizes: tuple[int, ...]
    last: bool  # of this deposit: `stored` answers it


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A rank says that it has mapped a set."""

    conn: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    conn: int
    re: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRefused:
    conn: int
    set: str
    reason: str


# streams
@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherHello:
    stream: int
    uid: str
    pod: str
    revision: str
    serves: bool
    plan: Mapping[str, int]
    weights: tuple[Wanted, ...]
    role: Role
    term: int
    device_bytes: int = 0
    gpus: tuple[str, ...] = ()
    server: str = ""  # of a live server
    phase: Phase | None = None
    sets: tuple[str, ...] = ()  # that it has attached or is filling


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGone:
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachAsked:
    stream: int
    request: int
    server: str
    sets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChanged:
    stream: int
    server: str
    phase: Phase
    exit_code: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    progress: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    stream: int
    performance: Performance


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """By hand: the slot gives its memory back (`on`), or may take it again."""

    on: bool


Event = (
    SpecChanged | CallersChanged | KeeperHello | LauncherConnected | RankConnected | Has | Ready | Disconnected
    | Mapped | PeerDead | Stored | ManifestStored | StoreFailed | Dropped | AgentClosed | KeeperLeaving | ListenerHeld
    | NoListener | ListenerAsked | Deposited | Sealed | SealRefused | LauncherHello | StreamGone | AttachAsked
    | ServerChanged | Leaving | Performed | TermRemembered | DeathHinted | QueueSeen | HeldUp | Released
)  # fmt: skip
