"""A standby's rank sleeps until a request comes, an active engine's does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_wakefulness")


@pytest.mark.parametrize("what", ["standing by", "woken", "active"])
def test_a_rank_sleeps_while_its_engine_stands_by(told: dict[str, Any], what: str) -> None:
    assert told[what]


@pytest.mark.parametrize("who", ["without a server", "another rank"])
def test_who_has_no_part_in_it_stays_as_sglang_made_it(told: dict[str, Any], who: str) -> None:
    assert told[who]


def test_an_engine_that_is_to_sleep_always_does(told: dict[str, Any]) -> None:
    assert told["asked for"] == "IdleSleeper"


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be guarded" in told["another release"]
