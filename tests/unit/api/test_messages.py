"""The table of messages against docs/protocol.md: what passes, and what each wrong field is called."""

from __future__ import annotations

import json
import random
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.descriptors import none_leaked

from ling_api import fdpass, messages
from ling_api.fdpass import ProtocolError

SET = "a" * 64 + ":0"
PART = {"set": SET, "kind": "memfd", "sizes": [4096, 4096], "part": 0, "parts": 1}
REGIONS = {**PART, "manifest": False}
MEMBER = dict.fromkeys(("namespace", "pod", "uid", "slot", "component", "revision"), "x")
TICKET = {"ticket": "b" * 64}
KEY = {"key": "c" * 64}

BACKS_UP: list[tuple[str, dict[str, Any], int]] = [
    ("have", REGIONS, 2),
    ("have", {**REGIONS, "manifest": True}, 3),
    ("have-listener", {"netns": (1 << 64) - 1}, 1),
    ("ready", {}, 0),
    ("stored", {"set": SET, "part": 0}, 0),
    ("stored-manifest", {"set": SET}, 0),
    ("dropped", {"set": SET}, 0),
]
BACKED_UP: list[tuple[str, dict[str, Any], int]] = [
    ("keep", REGIONS, 2),
    ("keep-manifest", {"set": SET}, 1),
    ("drop", {"set": SET}, 0),
    ("listener", {}, 1),
    ("error", {"reason": "why"}, 0),
]
GOOD: dict[str, list[tuple[str, dict[str, Any], int]]] = {
    "keeper->agent": [
        *BACKS_UP,
        ("hello", {"version": 1, "kind": "keeper", "netns": 7}, 0),
        ("members", {"members": {"d000": MEMBER}}, 0),
        ("failed", {"set": SET, "reason": "no memory"}, 0),
        ("no-listener", {"reason": "in use"}, 0),
        ("leaving", {}, 0),
    ],
    "agent->keeper": [
        *BACKED_UP,
        ("listen", {"port": 8000, "backlog": 4096}, 0),
        ("members", {"members": {}}, 0),
        ("word", {"ready": True, "message": ""}, 0),
        ("released", {}, 0),
    ],
    "launcher->agent": [
        *BACKS_UP,
        ("hello", {"version": 1, "kind": "launcher"}, 0),
        ("pass", {"count": 2}, 2),
        ("jit", KEY, 0),
        ("jit-offer", {**KEY, "bytes": 1}, 1),
    ],
    "agent->launcher": [
        *BACKED_UP,
        ("ticket", TICKET, 0),
        ("ticket", {**TICKET, "jit": True}, 0),
        ("park", {"count": 2}, 2),
        ("jit", {**KEY, "bytes": 0}, 0),
        ("jit", {**KEY, "bytes": 5}, 1),
    ],
    "kernels->agent": [("hello", {"version": 1, "kind": "kernels"}, 0), ("jit", KEY, 0)],
    "agent->kernels": [
        ("jit", {**KEY, "bytes": 0}, 0),
        ("jit", {**KEY, "bytes": 5}, 1),
        ("error", {"reason": "why"}, 0),
    ],
    "rank->agent": [
        ("hello", {"version": 1, "kind": "rank", "server": "s", "rank": 0}, 0),
        ("fetch", {"re": 1, **TICKET}, 0),
        ("deposit", {"re": 1, **TICKET, **PART}, 2),
        ("seal", {"re": 1, "set": SET}, 1),
        ("mapped", {"set": SET}, 0),
        ("listener", {"re": 1}, 0),
        ("pass", {"count": 128}, 128),
        ("pulse", {}, 1),
    ],
    "agent->rank": [
        ("welcome", {}, 0),
        ("welcome", {"pulse": True}, 0),
        ("promote", {"term": 3}, 0),
        ("set", {"re": 1, **REGIONS}, 2),
        ("set", {"re": 1, **REGIONS, "manifest": True}, 3),
        ("stored", {"re": 1}, 0),
        ("sealed", {"re": 1}, 0),
        ("listener", {"re": 1, "backlog": 4096}, 1),
        ("listener", {"backlog": 4096}, 1),
        ("adopt", {"count": 1}, 1),
        ("error", {"reason": "why"}, 0),
        ("error", {"re": 1, "reason": "why"}, 0),
    ],
}
ROWS = [(direction, op, fields, fds) for direction, rows in GOOD.items() for op, fields, fds in rows]
IDS = [f"{direction} {op} {fds}" for direction, op, _, fds in ROWS]


@pytest.mark.parametrize(("direction", "op", "fields", "fds"), ROWS, ids=IDS)
def test_a_good_message_passes_and_each_wrong_field_is_named(
    direction: str, op: str, fields: dict[str, Any], fds: int
) -> None:
    message = {"op": op, **fields}
    messages.validate(direction, message, fds)
    messages.validate(direction, {**message, "from a later release": 1}, fds)
    optional = {
        ("agent->rank", "error"): {"re"}, ("agent->rank", "listener"): {"re"}, ("agent->rank", "welcome"): {"pulse"},
        ("agent->launcher", "ticket"): {"jit"},
    }.get((direction, op), set())  # fmt: skip
    for name in fields:
        wrong = {**message, name: None}
        with pytest.raises(ProtocolError, match=f"{op}: the field '{name}' is wrong"):
            messages.validate(direction, wrong, fds)
        if name not in optional:
            del wrong[name]
            with pytest.raises(ProtocolError, match=f"{op}: the field '{name}' is missing"):
                messages.validate(direction, wrong, fds)
    with pytest.raises(ProtocolError, match="descriptors came along"):
        messages.validate(direction, message, fds + 1)


def test_every_op_of_the_table_is_tried() -> None:
    assert {direction: set(shapes) for direction, shapes in messages.SHAPES.items()} == {
        direction: {op for op, _, _ in rows} for direction, rows in GOOD.items()
    }


def test_every_op_of_the_text_is_in_the_table_and_the_other_way_round() -> None:
    text = (Path(__file__).parents[3] / "docs/protocol.md").read_text()
    part = text[text.index("### keeper -> agent") : text.index("## The stream")]
    written = set(re.findall(r"`([a-z-]+)`", part))
    known = {op for shapes in messages.SHAPES.values() for op in shapes}
    assert known <= written
    fields = {name for shapes in messages.SHAPES.values() for shape in shapes.values() for name in shape.fields}
    every = [shape for shapes in messages.SHAPES.values() for shape in shapes.values()]
    fields |= {name for shape in every for name in shape.optional or ()}
    assert written - known - fields - set(MEMBER) <= {"memfd", "cuda", "deposit", "re"}


WRONG: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("keeper->agent", "hello", {"version": 0, "kind": "keeper", "netns": 1}, 0, "'version' is wrong"),
    ("keeper->agent", "hello", {"version": True, "kind": "keeper", "netns": 1}, 0, "'version' is wrong"),
    ("keeper->agent", "hello", {"version": 1, "kind": "rank", "netns": 1}, 0, "'kind' is wrong"),
    ("keeper->agent", "keep", REGIONS, 2, "unknown op 'keep'"),
    ("keeper->agent", "have", {**REGIONS, "set": "a" * 64}, 2, "'set' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "set": "A" * 64 + ":0"}, 2, "'set' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "set": SET + "\n"}, 2, "'set' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "kind": "disk"}, 2, "'kind' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "kind": ["memfd"]}, 2, "'kind' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "sizes": []}, 0, "'sizes' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "sizes": [0, 1]}, 2, "'sizes' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "sizes": [1.0, 1]}, 2, "'sizes' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "sizes": [1] * 129}, 128, "'sizes' is wrong"),
    ("keeper->agent", "have", {**REGIONS, "sizes": [1] * 128, "manifest": True}, 128, "it says 129"),
    ("keeper->agent", "have", {**REGIONS, "part": 1}, 2, "part 1 of 1"),
    ("keeper->agent", "have", {**REGIONS, "part": 1, "parts": 2, "manifest": True}, 3, "part 0 only"),
    ("keeper->agent", "have", {**REGIONS, "manifest": 1}, 3, "'manifest' is wrong"),
    ("keeper->agent", "members", {"members": {"x": MEMBER}}, 0, "'members' is wrong"),
    ("keeper->agent", "members", {"members": {"d000": {"pod": "x"}}}, 0, "'members' is wrong"),
    ("keeper->agent", "members", {"members": []}, 0, "'members' is wrong"),
    ("agent->keeper", "listen", {"port": 0, "backlog": 1}, 0, "'port' is wrong"),
    ("agent->launcher", "ticket", {"ticket": "b" * 63}, 0, "'ticket' is wrong"),
    ("agent->launcher", "park", {"count": 0}, 0, "'count' is wrong"),
    ("keeper->agent", "members", {"members": {}, "term": 1 << 32}, 0, "'term' is wrong"),
    ("agent->launcher", "park", {"count": 3}, 2, "2 descriptors came along; it says 3"),
    ("rank->agent", "fetch", {"re": -1, **TICKET}, 0, "'re' is wrong"),
    ("rank->agent", "fetch", {"re": 1 << 64, **TICKET}, 0, "'re' is wrong"),
    ("agent->rank", "error", {"reason": "why", "re": "1"}, 0, "'re' is wrong"),
]


@pytest.mark.parametrize(("direction", "op", "fields", "fds", "sentence"), WRONG, ids=[f"{r[1]} {r[4]}" for r in WRONG])
def test_a_wrong_message_is_refused(direction: str, op: str, fields: dict[str, Any], fds: int, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        messages.validate(direction, {"op": op, **fields}, fds)


class TestFirstMessage:
    @pytest.mark.parametrize("kind", ["keeper", "launcher", "rank"])
    def test_says_which_table_holds(self, kind: str) -> None:
        hello = {"op": "hello", "version": 1, "kind": kind, "netns": 1, "server": "s", "rank": 0}
        assert messages.validate_first(hello, 0) == f"{kind}->agent"

    @pytest.mark.parametrize(
        ("message", "sentence"),
        [
            ({"op": "fetch", "re": 1, **TICKET}, "must be hello, not 'fetch'"),
            ({"op": "hello", "version": 1, "kind": "agent"}, "unknown kind 'agent'"),
            ({"op": "hello", "version": 1, "kind": ["rank"]}, "unknown kind"),
            ({"op": "hello", "version": 1, "kind": "rank", "rank": 0}, "'server' is missing"),
        ],
        ids=["no hello", "unknown", "a list", "incomplete"],
    )
    def test_refuses_anything_else(self, message: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ProtocolError, match=sentence):
            messages.validate_first(message, 0)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One frame's bytes with a few wounds; the length mostly stays true, so that the JSON behind it is read."""
    body = bytearray(data[4:])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del body[at : at + rng.randint(1, 9)]
            case 2:
                body[at:at] = rng.choice([b"null", b"-1", b"[[", b'{"', b"1e999", b"NaN", b"\\ud800", b"\x00", b"true"])
            case 3:
                body[at:at] = bytes(body[: rng.randint(0, 40)])
            case 4:
                other = rng.choice(ROWS)
                body = bytearray(json.dumps({**json.loads(data[4:]), **other[2]}).encode())
    if rng.random() < 0.1:
        return rng.randbytes(4) + bytes(body)
    return fdpass.HEADER.pack(len(body)) + bytes(body)


def test_a_thousand_mutated_frames_end_in_a_protocol_error_or_pass_whole() -> None:
    rng = random.Random(20261129)
    outcomes = {"refused": 0, "passed": 0}
    with none_leaked():
        fd = socket.socket().detach()
        for _ in range(1000):
            direction, op, fields, count = rng.choice(ROWS)
            sent = rng.choice([count, count, rng.randint(0, 4)])
            data = mutate(fdpass.encode({"op": op, **fields}), rng)
            outcomes[meet(direction, data, [fd] * sent)] += 1
        fdpass.close_all([fd])
    assert outcomes["refused"] > 500
    assert outcomes["passed"] > 10


def meet(direction: str, data: bytes, fds: list[int]) -> str:
    """What an agent's connection makes of the bytes; anything but a ProtocolError gets out of here."""
    one, two = socket.socketpair()
    reader = fdpass.Reader(two)
    passed = 0
    with one, two:
        socket.send_fds(one, [data], fds)
        one.shutdown(socket.SHUT_WR)
        try:
            while True:
                for message, came in reader.read():
                    fdpass.close_all(came)
                    messages.validate(direction, message, len(came))
                    passed += 1
        except ProtocolError as error:
            assert "\n" not in str(error)
            return "refused"
        except fdpass.PeerGone:
            assert passed
            return "passed"
        finally:
            reader.close()
