"""Our kernels for few rows beside SGLang's own functions, in Triton's interpreter, in bf16."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sglang_lane import Lane

ROWS = ("1", "2", "6", "9", "16")
ROUNDING = 0.01  # of the largest value: two steps of bf16


@pytest.fixture(scope="module")
def told(lane: Lane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = tmp_path_factory.mktemp("few-rows") / "told.json"
    lane.run("tests.support.sglang_few_rows", str(model), str(result))
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize("limit", ["free", "limited"])
@pytest.mark.parametrize("rows", ROWS)
def test_experts_are_sglangs_but_for_rounding(told: dict[str, Any], limit: str, rows: str) -> None:
    assert told[limit][rows]["experts"] < ROUNDING


@pytest.mark.parametrize("rows", ROWS)
def test_scores_are_as_exact_as_in_fp32(told: dict[str, Any], rows: str) -> None:
    assert told["free"][rows]["scores"] < 1e-6


@pytest.mark.parametrize("rows", ROWS)
def test_the_same_experts_are_chosen_with_the_same_weights(told: dict[str, Any], rows: str) -> None:
    assert told["free"][rows]["other experts"] == 0
    assert told["free"][rows]["weights"] < 1e-6


@pytest.mark.parametrize(
    "case", ["Flash", "ties", "negative ranks", "scaled", "as they are", "none shared", "groups of 3", "padded"]
)
def test_experts_are_chosen_by_the_definition(told: dict[str, Any], case: str) -> None:
    assert told["choices"][case]


def test_a_padded_row_has_no_result(told: dict[str, Any]) -> None:
    assert told["left out"] == 0


@pytest.mark.parametrize("part", ["scores", "choice", "experts"])
def test_sglang_itself_calls_ours_for_few_rows_and_its_own_for_more(told: dict[str, Any], part: str) -> None:
    before, after = told["hooked"]["9"][part]
    assert after
    assert not before, "else this test could not tell them apart"
    assert told["hooked"]["17"][part] == [True, True]


def test_a_step_of_kda_has_the_same_bits_with_fewer_columns_a_program(told: dict[str, Any]) -> None:
    found = told["recurrence"]
    assert (found["columns"], found["equal"], found["moved"]) == ([32, 8], True, True)
    assert found["other"] == [[32, 1], [32, 1]], "several requests, and what is no KDA, are SGLang's"


def test_sglang_itself_verifies_by_our_columns(told: dict[str, Any]) -> None:
    assert told["verification"]["taken"] == [4, 16]


@pytest.mark.parametrize("kept", ["states", "ring"])
def test_a_round_is_verified_with_the_same_bits_by_more_columns_a_program(told: dict[str, Any], kept: str) -> None:
    assert told["verification"]["columns"], "else nothing was another"
    assert told["verification"][kept]


def test_what_a_draft_keeps_of_the_targets_rows_has_sglangs_bits(told: dict[str, Any]) -> None:
    assert len(told["context"]) == 8
    assert all(told["context"].values()), told["context"]


def test_a_replay_is_launched_with_more_programs_of_fewer_columns(told: dict[str, Any]) -> None:
    usual, first, again = told["launched"]
    assert usual == [[2, 1, 6], 32, usual[2]]
    assert first == again == [[8, 1, 6], 8, usual[2]]


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]


def test_the_benchmark_times_both_ways_part_by_part(told: dict[str, Any]) -> None:
    found = told["benchmark"]
    assert found["parts"] == ["choice", "experts", "layer", "layer, best plans", "scores"]
    assert found["tried"] == 1
    assert found["line"].startswith("17x32 rows=2: scores ")
    assert all(took > 0 for took in found["took"])
