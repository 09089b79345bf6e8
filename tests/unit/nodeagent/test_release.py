"""`ling-nodeagent release`: what a released slot does, what the socket answers, and when all memory is free."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.slot_mind import A, Mind

from ling_api.v1 import agent_pb2 as pb
from ling_nodeagent import decisions as do
from ling_nodeagent import events, release
from ling_nodeagent.engines import hello_event
from ling_nodeagent.facts import Role
from ling_nodeagent.status import build_status

if TYPE_CHECKING:
    from pathlib import Path

NO_NAMES = {"error": "`slots` and `gpus` are lists of names; both null is all"}
NO_REQUEST = {"error": "a request is a JSON object with `slots`, `gpus` and `on`"}


def serving() -> tuple[Mind, int]:
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    return mind, mind.serve("one", "s1")


def test_a_released_slot_drains_drops_and_starts_nothing_until_undone() -> None:
    mind, conn = serving()
    said = mind.post(events.Released(on=True))
    assert [each for each in said if isinstance(each, do.SetRole)][-1].role is Role.DRAINING
    mind.die(conn)
    mind.drops_acknowledged()
    assert not mind.slot.sets
    before = len(mind.said)
    mind.later(60)
    assert not [each for each in mind.said[before:] if isinstance(each, do.Go)]
    status = build_status(mind.slot, node="n", previous=None, now=mind.now)
    assert status["message"].startswith("released by hand")
    mind.post(events.Released(on=False))
    mind.later(60)
    assert [each for each in mind.said[before:] if isinstance(each, do.Go)], "it may start again"


@pytest.mark.parametrize(
    ("line", "answer", "posted"),
    [
        (b'{"slots": null, "gpus": null, "on": true}', {"slots": ["a/x", "a/y"]}, [("a/x", True), ("a/y", True)]),
        (b'{"slots": ["a/y"], "gpus": null, "on": false}', {"slots": ["a/y"]}, [("a/y", False)]),
        (b'{"slots": null, "gpus": ["GPU-00aa"], "on": true}', {"slots": ["a/y"]}, [("a/y", True)]),
        (b'{"slots": null, "gpus": ["00AA", "GPU-00ab"], "on": true}', {"slots": ["a/y"]}, [("a/y", True)]),
        (
            b'{"slots": null, "gpus": ["GPU-1"], "on": true}',
            {
                "error": "no slot of this node is known to use GPU GPU-1; known are GPU-00aa, GPU-00ab "
                "(engines name their GPUs when they connect: if none has, write --slot)"
            },
            [],
        ),
        (b'{"slots": ["a/z"], "gpus": null, "on": 1}', {"error": "no slot a/z on this node; here are a/x, a/y"}, []),
        (b'{"slots": [1], "gpus": null, "on": true}', NO_NAMES, []),
        (b'{"slots": null, "gpus": "GPU-1", "on": true}', NO_NAMES, []),
        (b'{"slots": ["a/x"], "on": true}', NO_REQUEST, []),
        (b"[]", NO_REQUEST, []),
        (b"", NO_REQUEST, []),
        (b"[" * 20_000, NO_REQUEST, []),
    ],
    ids=[
        "all",
        "one",
        "GPU",
        "GPUs",
        "no GPU",
        "unknown",
        "no names",
        "no list",
        "half",
        "no object",
        "nothing",
        "deep",
    ],
)
def test_the_socket_obeys_or_says_what_is_wrong(
    tmp_path: Path, line: bytes, answer: dict[str, Any], posted: list[Any]
) -> None:
    seen: list[Any] = []
    control = release.Control(
        tmp_path,
        {"a/y": replace(Mind().slot, gpus=("GPU-00aa", "GPU-00ab")), "a/x": Mind().slot},
        lambda name, event: seen.append((name, event.on)),
    )
    assert control.obey(line) == answer
    assert seen == posted
    json.dumps(answer)


def test_the_next_agent_knows_what_was_released_until_it_is_undone_or_the_slot_is_deleted(tmp_path: Path) -> None:
    slots = {name: Mind().slot for name in ("a/x", "a/y", "a/z")}

    def control() -> release.Control:
        return release.Control(tmp_path, slots, lambda name, event: None)

    def known() -> list[str]:
        return [name for name in slots if control().released(name)]

    now = control()
    now.obey(b'{"slots": null, "gpus": null, "on": true}')
    assert known() == ["a/x", "a/y", "a/z"]
    now.obey(b'{"slots": ["a/x"], "gpus": null, "on": false}')
    now.forget_all_but(["a/x", "a/z"])
    assert known() == ["a/z"]
    (tmp_path / release.FILE).write_text("7")
    assert known() == []


def test_what_cannot_be_written_holds_for_this_agent_and_is_written_with_the_next_word(tmp_path: Path) -> None:
    slots = {"a/x": Mind().slot}
    now = release.Control(tmp_path, slots, lambda name, event: None)
    (tmp_path / f"{release.FILE}.new").mkdir()  # nothing can be written over it
    assert now.obey(b'{"slots": null, "gpus": null, "on": true}') == {"slots": ["a/x"]}
    assert now.released("a/x")
    (tmp_path / f"{release.FILE}.new").rmdir()
    now.forget_all_but(slots)
    assert release.Control(tmp_path, slots, lambda name, event: None).released("a/x")


def test_a_slot_keeps_the_gpus_that_its_engines_named_while_none_is_connected() -> None:
    mind, uuids = Mind(), ["GPU-00aa", "GPU-00ab"]
    mind.keeper()
    for hello, known in ((pb.Hello(gpus=uuids), uuids), (pb.Hello(), uuids), (pb.Hello(gpus=["x" * 90]), ["x" * 64])):
        mind.know("one")
        mind.post(hello_event(hello, uid="uid-one", pod="one")(mind.new()))
        assert build_status(mind.slot, node="n", previous=None, now=mind.now)["gpus"] == known
        mind.forget("one")
        assert build_status(mind.slot, node="n", previous=None, now=mind.now)["gpus"] == known


def test_memory_is_free_when_no_set_and_no_server_is_left() -> None:
    mind, conn = serving()
    known = {"slots": {mind.slot.name: build_status(mind.slot, node="n", previous=None, now=mind.now)}}
    rest = release.left(known, [mind.slot.name, "ns/gone"])
    assert rest == [
        f"ns/demo-0: weight set {A.set[:12]} is sealed",
        "ns/demo-0: engine one is accepting",
    ]
    mind.post(events.Released(on=True))
    mind.die(conn)
    mind.drops_acknowledged()
    known = {"slots": {mind.slot.name: build_status(mind.slot, node="n", previous=None, now=mind.now)}}
    assert release.left(known, [mind.slot.name]) == []


def test_waiting_tells_what_changes_and_gives_up_in_time() -> None:
    told: list[str] = []
    states = iter(["sealed", "sealed", "dropping", None])

    def look() -> dict[str, Any]:
        state = next(states)
        sets = [{"set": "ab", "state": state}] if state else []
        return {"slots": {"a/x": {"weightSets": sets, "engines": []}}}

    assert release.wait(look, ["a/x"], 60, told.append)
    assert told == ["a/x: weight set ab is sealed", "a/x: weight set ab is dropping"]
    stuck = {"slots": {"a/x": {"weightSets": [{"set": "ab", "state": "sealed"}], "engines": []}}}
    assert not release.wait(lambda: stuck, ["a/x"], 0, told.append)
