"""Drafts with matrices in fp8: what SGLang's own functions get of them, and where it stays with the shared ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_draft_fp8")
ROUNDED = 0.03  # e4m3 rounds a number by 2.5 % in the mean


def test_nextns_few_rows_get_rounded_scores(told: dict[str, Any]) -> None:
    found = told["scores"]
    assert found["apart"] < ROUNDED
    assert (found["type"], found["another"]) == ("torch.bfloat16", True)


def test_more_rows_are_multiplied_as_sglang_does(told: dict[str, Any]) -> None:
    assert told["scores"]["many"]
    assert told["layers"]["many"]
    assert told["layers"]["context, many"]


def test_a_number_that_fp16_does_not_hold_is_no_infinity(told: dict[str, Any]) -> None:
    assert told["outlier"] == [True, True]


def test_the_shared_head_is_as_it_was(told: dict[str, Any]) -> None:
    assert told["scores"]["kept"]
    assert told["heads"]["the target's"]


def test_the_copy_is_made_once_a_byte_for_each_number(told: dict[str, Any]) -> None:
    assert told["scores"]["once"]
    used, numbers = told["scores"]["bytes"]
    assert used == numbers


@pytest.mark.parametrize("why", ["another type", "no whole programs", "fewer words"])
def test_what_the_kernel_is_not_for_stays_shared(told: dict[str, Any], why: str) -> None:
    assert told["shared"][why]


def test_dsparks_head_is_its_own_and_else_the_targets(told: dict[str, Any]) -> None:
    found = told["heads"]
    assert 0 < found["apart"] < ROUNDED
    assert (found["words"], found["unasked"], found["once"]) == (512, False, True)


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("two ranks", [False, False, False]),
        ("a bias", [True, True, False]),
        ("an odd matrix", [True, True, False]),
        ("another Markov head", [True, False, True]),
        ("fp32", [True, False, True]),
    ],
)
def test_a_part_that_the_kernels_are_not_for_stays_as_it_is(told: dict[str, Any], why: str, given: list[bool]) -> None:
    assert told["refusals"][why] == given


def test_two_hooks_on_one_method_of_sglangs_are_both_called(told: dict[str, Any]) -> None:
    assert told["both"] == ["acceptance", "fp8"]
    assert "one BEFORE would not be called" in told["two kinds"]


def test_dsparks_layers_and_what_the_target_leaves_them_are_rounded(told: dict[str, Any]) -> None:
    found = told["layers"]
    assert found["another"]
    assert found["apart"] < ROUNDED
    assert 0 < found["context"] < ROUNDED
    assert found["may be cut"], "SGLang writes the target's rows into the draft's cache by one product then"
    assert found["context, unasked"]
    assert found["no bundle"] is None


def test_a_block_is_drafted_as_sglang_would_with_the_rounded_matrix(told: dict[str, Any]) -> None:
    found = told["blocks"]
    wanted, ours = found["tokens"]
    assert ours == wanted
    assert found["scores"] < 0.005, "bf16 rounds them, SGLang's product first"
    assert found["advanced"] == [1, 1, 0]


def test_a_row_with_a_temperature_is_drawn(told: dict[str, Any]) -> None:
    assert told["blocks"]["repeatable"], "of the same seed and round"
    assert told["blocks"]["another round"]
    hot, cold = told["blocks"]["drawn"]
    assert hot
    assert cold, "a low temperature takes the best"


def test_several_requests_are_drafted_as_they_were(told: dict[str, Any]) -> None:
    assert told["blocks"]["several"] == 0


def test_it_is_put_in_place_where_it_is_asked_for(told: dict[str, Any]) -> None:
    assert (told["unasked"], told["hooked"]) == (True, [True] * 4)
    assert told["refused"] == {
        "fp4": "LING_DRAFT_FP8: no part 'fp4'; write some of head,markov,layers",
        "markov": "LING_DRAFT_FP8: no part 'markov'; write some of head",
    }


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
