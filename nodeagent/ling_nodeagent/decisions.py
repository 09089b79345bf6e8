"""What the pure part tells the hub to do: frozen values, one class per deed. `conn` and `stream` are numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .directory import Caller
    from .facts import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    stream: int
    term: int
    recovering: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    stream: int
    pod: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRole:
    stream: int
    pod: str
    role: Role
    term: int
    grace_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    stream: int
    pod: str
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The launcher is to kill that server."""

    stream: int
    pod: str
    server: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """The same word as SetRole, on the short way to the process that accepts."""

    conn: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether a standby is to leave the device to the active engine."""

    stream: int
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBack:
    """Whether an engine pod answers its readiness probe with no, whatever it does."""

    stream: int
    pod: str
    held_back: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Tickets to fetch every set."""

    sets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Tickets to deposit `sets`, and to fetch those that the slot holds."""

    sets: tuple[str, ...]
    granted: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    reason: str
    progress: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: str
    fields: tuple[tuple[str, str, str], ...] = ()  # (field, wanted, held)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAttach:
    stream: int
    request: int
    server: str
    answer: Granted | Fill | Wait | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPart:
    """Send one deposited part to the keeper."""

    conn: int
    set: str
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepManifest:
    conn: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackUp:
    """Send a whole sealed set to a launcher, or to a keeper that lacks it."""

    conn: int
    set: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSet:
    """Close the agent's copies and tell `conns` to close theirs."""

    set: str
    conns: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    conn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendListener:
    """A copy of the listener for a keeper or a launcher; with `re`, the answer to a rank."""

    conn: int
    re: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropListener:
    """Close the agent's copy: it is of another network namespace, or the slot is gone."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a rank's `deposit` or `seal`."""

    conn: int
    re: int
    op: str  # stored | sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerError:
    conn: int
    re: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    conn: int
    ready: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    conn: int
    callers: tuple[Caller, ...]
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    conn: int


Decision = (
    Welcome | Go | SetRole | Stop | AnswerAttach | KeepPart | KeepManifest | BackUp | DropSet | Listen | SendListener
    | DropListener | Answer | AnswerError | Word | Members | Released | Kill | Turn | HoldBack | Promote
)  # fmt: skip
