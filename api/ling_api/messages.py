"""The folder socket's messages as a table: which side may send which op, its fields and its descriptors.

docs/protocol.md is the text; this is the same as data. Fields that are not named are passed over: a later release
may send more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_api.fdpass import MAX_FDS, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

type Message = dict[str, Any]
type Check = Callable[[Any], bool]

_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SET: Final = re.compile(r"[0-9a-f]{64}:(0|[1-9][0-9]{0,4})")
_DEVICE: Final = re.compile(r"d[0-9]{3}")
_MEMBER: Final = ("namespace", "pod", "uid", "slot", "component", "revision")
_LARGEST: Final = (1 << 64) - 1  # a namespace cookie has 64 bits
_MAX_PARTS: Final = 4096


def _whole(low: int, high: int = _LARGEST) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _exactly(text: str) -> Check:
    return lambda value: value == text


def _shaped(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _sizes(value: Any) -> bool:
    size = _whole(1, 1 << 50)
    return isinstance(value, list) and 0 < len(value) <= MAX_FDS and all(size(item) for item in value)


def _members(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _DEVICE.fullmatch(device) and isinstance(member, dict) and all(_text(member.get(key)) for key in _MEMBER)
        for device, member in value.items()
    )


def _no_fds(_message: Message) -> int:
    return 0


def _one_fd(_message: Message) -> int:
    return 1


def _count_fds(message: Message) -> int:
    return int(message["count"])


def _region_fds(message: Message) -> int:
    return len(message["sizes"]) + (message.get("manifest") is True)


@dataclass(frozen=True, slots=True)
class Shape:
    """An op's fields with what each must be, and how many descriptors come along."""

    fields: Mapping[str, Check]
    fds: Callable[[Message], int] = _no_fds
    optional: Mapping[str, Check] | None = None


_ANSWERED: Final[Mapping[str, Check]] = {"re": _whole(0)}
_TICKET: Final[Mapping[str, Check]] = {"ticket": _shaped(_HEX)}
_KEY: Final[Mapping[str, Check]] = {"key": _shaped(_HEX)}  # of compiled kernels
_ONE_SET: Final[Mapping[str, Check]] = {"set": _shaped(_SET)}
_PLAIN: Final = Shape({})
_PART: Final[Mapping[str, Check]] = {
    **_ONE_SET,
    "kind": lambda value: value in ("memfd", "cuda"),
    "sizes": _sizes,
    "part": _whole(0, _MAX_PARTS - 1),
    "parts": _whole(1, _MAX_PARTS),
}
_REGIONS: Final = Shape({**_PART, "manifest": _flag}, _region_fds)
_SET_ONLY: Final = Shape(_ONE_SET)
_SET_AND_FD: Final = Shape(_ONE_SET, _one_fd)
_LISTENER: Final = Shape({}, _one_fd)
_HAVE_LISTENER: Final = Shape({"netns": _whole(0)}, _one_fd)
_CONNECTIONS: Final = Shape({"count": _whole(1, MAX_FDS)}, _count_fds)
_MEMBERS: Final = Shape({"members": _members}, optional={"term": _whole(0, (1 << 32) - 1)})
_REASON: Final = Shape({"reason": _text})
_JIT_ASKED: Final = Shape(_KEY)
_JIT: Final = Shape({**_KEY, "bytes": _whole(0, 1 << 40)}, lambda message: int(message["bytes"] > 0))
_STORED: Final = Shape({**_ONE_SET, "part": _whole(0, _MAX_PARTS - 1)})


def _hello(kind: str, **fields: Check) -> Shape:
    return Shape({"version": _whole(1), "kind": _exactly(kind), **fields})


_BACKS_UP: Final[Mapping[str, Shape]] = {  # from keeper and launcher alike
    "have": _REGIONS,
    "have-listener": _HAVE_LISTENER,
    "ready": _PLAIN,
    "stored": _STORED,
    "stored-manifest": _SET_ONLY,
    "dropped": _SET_ONLY,
}
_BACKED_UP: Final[Mapping[str, Shape]] = {  # to keeper and launcher alike
    "keep": _REGIONS,
    "keep-manifest": _SET_AND_FD,
    "drop": _SET_ONLY,
    "listener": _LISTENER,
    "error": _REASON,
}

SHAPES: Final[Mapping[str, Mapping[str, Shape]]] = {
    "keeper->agent": {
        **_BACKS_UP,
        "hello": _hello("keeper", netns=_whole(0)),
        "members": _MEMBERS,
        "failed": Shape({**_ONE_SET, "reason": _text}),
        "no-listener": _REASON,
        "leaving": _PLAIN,
    },
    "agent->keeper": {
        **_BACKED_UP,
        "listen": Shape({"port": _whole(1, 65535), "backlog": _whole(1, 1 << 16)}),
        "members": _MEMBERS,
        "word": Shape({"ready": _flag, "message": _text}),
        "released": _PLAIN,
    },
    "launcher->agent": {
        **_BACKS_UP,
        "hello": _hello("launcher"),
        "pass": _CONNECTIONS,
        "jit": _JIT_ASKED,
        "jit-offer": Shape({**_KEY, "bytes": _whole(1, 1 << 40)}, _one_fd),
    },
    "agent->launcher": {
        **_BACKED_UP,
        "ticket": Shape(_TICKET, optional={"jit": _flag}),
        "park": _CONNECTIONS,
        "jit": _JIT,
    },
    "kernels->agent": {  # of a launcher that has nothing else to say yet
        "hello": _hello("kernels"),
        "jit": _JIT_ASKED,
    },
    "agent->kernels": {"jit": _JIT, "error": _REASON},
    "rank->agent": {
        "hello": _hello("rank", server=_text, rank=_whole(0, 1 << 16)),
        "fetch": Shape({**_ANSWERED, **_TICKET}),
        "deposit": Shape({**_ANSWERED, **_TICKET, **_PART}, _region_fds),
        "seal": Shape({**_ANSWERED, **_ONE_SET}, _one_fd),
        "mapped": _SET_ONLY,
        "listener": Shape(_ANSWERED),
        "pass": _CONNECTIONS,
        "pulse": Shape({}, _one_fd),
    },
    "agent->rank": {
        "welcome": Shape({}, optional={"pulse": _flag}),
        "set": Shape({**_ANSWERED, **_PART, "manifest": _flag}, _region_fds),
        "stored": Shape(_ANSWERED),
        "sealed": Shape(_ANSWERED),
        "listener": Shape({"backlog": _whole(1, 1 << 16)}, _one_fd, optional=_ANSWERED),  # unasked: a new listener
        "adopt": _CONNECTIONS,
        "promote": Shape({"term": _whole(0, (1 << 32) - 1)}),
        "error": Shape({"reason": _text}, optional=_ANSWERED),
    },
}


def validate(direction: str, message: Message, nfds: int) -> None:
    """Checks a message that came in `direction` ("keeper->agent", ...). Raises ProtocolError with one sentence."""
    op = message.get("op")
    shape = SHAPES[direction].get(op) if isinstance(op, str) else None
    if shape is None:
        raise ProtocolError(f"{direction}: unknown op {str(op)[:40]!r}")
    for name, check in shape.fields.items():
        if name not in message:
            raise ProtocolError(f"{direction} {op}: the field {name!r} is missing")
        if not check(message[name]):
            raise ProtocolError(f"{direction} {op}: the field {name!r} is wrong")
    for name, check in (shape.optional or {}).items():
        if name in message and not check(message[name]):
            raise ProtocolError(f"{direction} {op}: the field {name!r} is wrong")
    _check_part(direction, message, shape)
    wanted = shape.fds(message)
    if nfds != wanted:
        raise ProtocolError(f"{direction} {op}: {nfds} descriptors came along; it says {wanted}")


def validate_first(message: Message, nfds: int) -> str:
    """The direction of a connection to the agent, from its first message. Raises ProtocolError if that is no hello."""
    if message.get("op") != "hello":
        raise ProtocolError(f"the first message must be hello, not {str(message.get('op'))[:40]!r}")
    kind = message.get("kind")
    direction = f"{kind}->agent"
    if not isinstance(kind, str) or direction not in SHAPES:
        raise ProtocolError(f"hello: unknown kind {str(kind)[:40]!r}; known are keeper, launcher, kernels, rank")
    validate(direction, message, nfds)
    return direction


def _check_part(direction: str, message: Message, shape: Shape) -> None:
    if "parts" not in shape.fields:
        return
    if message["part"] >= message["parts"]:
        raise ProtocolError(f"{direction} {message['op']}: part {message['part']} of {message['parts']}")
    if message.get("manifest") is True and message["part"]:
        raise ProtocolError(f"{direction} {message['op']}: the manifest comes with part 0 only")
