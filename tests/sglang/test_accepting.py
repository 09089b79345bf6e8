"""DSPARK's acceptance in the verify graph: what our hook builds is SGLang's, and is right for a target like ours."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_accepting")


@pytest.mark.parametrize(
    "what",
    [
        "tokens", "confirmed", "lengths", "bonus", "counted", "next round's lengths", "next round's tokens",
        "executor has it", "written for requests that sample",
        "written for a batch that is padded", "written", "committed behind the graph",
    ],
)  # fmt: skip
def test_the_graph_accepts_as_it_should(told: dict[str, Any], what: str) -> None:
    said, right = told["accepted"][what]
    assert said == right


@pytest.mark.parametrize(
    "why",
    [
        "SGLang's own", "no overlap", "ragged", "no graphs", "no draft here", "stages", "data-parallel attention",
        "another kind of draft", "a prefix cache", "translated slots",
        "another way of keeping states",
    ],
)  # fmt: skip
def test_where_it_does_not_fit_nothing_is_changed(told: dict[str, Any], why: str) -> None:
    assert told["left alone"][why]


def test_it_is_put_in_place_where_it_is_asked_for(told: dict[str, Any]) -> None:
    assert (told["unasked"], told["hooked"]) == (True, True)
    assert told["refused"] == "LING_ACCEPT_IN_GRAPH 'yes': write 1, or leave it empty"


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
