"""Real processes: an engine that decodes otherwise keeps the target's weights and fills the draft's only."""

from __future__ import annotations

import http.client
import json
import re
from typing import TYPE_CHECKING

import pytest
from hack import spine
from tests.support import drafted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SAID = re.compile(r"set=(\S+) role=(\w+) (filled|attached)=")


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[spine.Spine]:
    with drafted.slot(tmp_path) as stage:
        yield stage


def fill(stage: spine.Spine, pod: str, device: str, *flags: str) -> dict[str, tuple[str, str]]:
    """role -> (set, filled or attached), after an engine came, attached and went."""
    drafted.engine(stage, pod, device, "fill", *flags)
    code = stage.processes[pod].wait(500)
    log = (stage.folder / f"{pod}.log").read_text()
    assert code == 0, log
    return {role: (name, how) for name, role, how in _SAID.findall(log)}


def test_another_decoding_keeps_the_target_and_fills_its_draft_only(slot: spine.Spine) -> None:
    first = fill(slot, "one", "d001", "--decoding", "NEXTN")
    assert {role: how for role, (_, how) in first.items()} == {"target": "filled", "nextn": "filled"}
    second = fill(slot, "two", "d002", "--decoding", "DSPARK")
    assert {role: how for role, (_, how) in second.items()} == {"target": "attached", "dspark": "filled"}
    assert second["target"][0] == first["target"][0]
    third = fill(slot, "three", "d003", "--decoding", "NEXTN", "--num-steps", "2")
    assert {role: how for role, (_, how) in third.items()} == {"target": "attached", "nextn": "attached"}
    fourth = fill(slot, "four", "d004")
    assert fourth == {"target": (first["target"][0], "attached")}
    held = {one["role"] for one in slot.status()["weightSets"]}
    assert "target" in held


def test_an_engine_tells_how_many_rows_its_draft_has_it_verify_and_what_its_means_are_of(slot: spine.Spine) -> None:
    drafted.engine(slot, "one", "d001", "run", "--decoding", "DSPARK")
    serving = {"type": "Serving", "status": "True"}
    spine.until(lambda: any(serving.items() <= one.items() for one in slot.status().get("conditions", ())), "it serves")
    asking = http.client.HTTPConnection("127.0.0.1", slot.port, timeout=120)
    asking.request("POST", "/v1/completions", json.dumps({"model": slot.model.name, "prompt": "a", "max_tokens": 9}))
    assert asking.getresponse().status == 200
    asking.close()
    spine.until(lambda: slot.status()["engines"][0].get("samples"), "the agent knows of the request")
    (engine,) = slot.status()["engines"]
    block = json.loads((slot.model / "dspark" / "config.json").read_text())["block_size"]
    assert (engine["draftTokens"], engine["samples"], engine["windowSeconds"]) == (block + 1, 1, 0.0)
