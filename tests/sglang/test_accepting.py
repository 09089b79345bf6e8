"""DSPARK's acceptance in the verify graph: what our hook builds is SGLang's, and is right for a target like ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.sglang_lane import Lane


@pytest.fixture(scope="module")
def told(lane: Lane, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = tmp_path_factory.mktemp("accepting") / "told.json"
    lane.run("tests.support.sglang_accepting", str(result))
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize(
    "what",
    [
        "tokens", "confirmed", "lengths", "bonus", "counted", "next round's lengths", "next round's tokens",
        "executor has it",
    ],
)  # fmt: skip
def test_the_graph_accepts_as_it_should(told: dict[str, Any], what: str) -> None:
    said, right = told["accepted"][what]
    assert said == right


@pytest.mark.parametrize(
    "why",
    [
        "SGLang's own", "no overlap", "ragged", "no graphs", "no draft here", "stages", "data-parallel attention",
        "a cache that the graph would write",
    ],
)  # fmt: skip
def test_where_it_does_not_fit_nothing_is_changed(told: dict[str, Any], why: str) -> None:
    assert told["left alone"][why]


def test_it_is_put_in_place_where_it_is_asked_for(told: dict[str, Any]) -> None:
    assert (told["unasked"], told["hooked"]) == (True, True)


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
