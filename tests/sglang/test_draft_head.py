"""NEXTN's head in fp8: what SGLang's logits processor gets from it, and where the shared one stays."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_draft_head")


def test_few_rows_get_rounded_scores(told: dict[str, Any]) -> None:
    found = told["scores"]
    assert found["apart"] < 0.03, "e4m3 rounds a number by 2.5 % in the mean"
    assert (found["type"], found["another"]) == ("torch.bfloat16", True)


def test_more_rows_are_multiplied_as_sglang_does(told: dict[str, Any]) -> None:
    assert told["scores"]["many"]


def test_the_shared_head_is_as_it_was(told: dict[str, Any]) -> None:
    assert told["scores"]["kept"]


def test_the_copy_is_made_once_a_byte_for_each_number(told: dict[str, Any]) -> None:
    assert told["scores"]["once"]
    used, numbers = told["scores"]["bytes"]
    assert used == numbers


@pytest.mark.parametrize("why", ["another type", "no whole programs", "fewer words"])
def test_what_the_kernel_is_not_for_stays_shared(told: dict[str, Any], why: str) -> None:
    assert told["shared"][why]


def test_it_is_put_in_place_where_it_is_asked_for(told: dict[str, Any]) -> None:
    assert (told["unasked"], told["hooked"]) == (True, True)
    assert told["refused"] == "LING_DRAFT_HEAD 'fp4': write fp8, or leave it empty"


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
