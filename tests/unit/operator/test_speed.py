"""Whether the wanted speed is met, and when drafts behave suspiciously."""

from __future__ import annotations

from typing import Any

import pytest

from ling_api.checkpoint import Decoding
from ling_api.errors import BadInput
from ling_api.v1alpha1 import Slo
from ling_operator.speed import WINDOW, ceiling, slo_met, suspicion

PLAIN = Decoding()
NEXTN = Decoding(algorithm="NEXTN")
FEWER = Decoding(algorithm="NEXTN", num_steps=2, num_draft_tokens=3)
DSPARK = Decoding(algorithm="DSPARK")
STATED = Decoding(algorithm="DSPARK", num_draft_tokens=8)


@pytest.mark.parametrize(
    ("decoding", "most"),
    [(PLAIN, None), (NEXTN, 6.0), (FEWER, 3.0), (DSPARK, None), (STATED, 8.0)],
    ids=["none", "nextn", "nextn stated", "dspark", "dspark stated"],
)
def test_the_longest_accept_length(decoding: Decoding, most: float | None) -> None:
    assert ceiling(decoding) == most


@pytest.mark.parametrize(
    ("decoding", "told", "length", "reason"),
    [
        (DSPARK, 9, 9.0, "AcceptLengthAtCeiling"),
        (DSPARK, 9, 8.9, None),
        (DSPARK, 0, 9.0, None),
        (STATED, 5, 5.0, "AcceptLengthAtCeiling"),
        (PLAIN, 9, 9.0, None),
    ],
    ids=["the draft's own block", "below it", "an engine that does not say", "its word counts", "plain"],
)
def test_the_engine_says_how_many_rows_it_verifies(
    decoding: Decoding, told: int, length: float, reason: str | None
) -> None:
    found = suspicion(decoding, length, WINDOW, told)
    assert (found and found[0]) == reason


@pytest.mark.parametrize(
    ("decoding", "length", "requests", "reason"),
    [
        (NEXTN, 3.2, 1000, None),
        (NEXTN, 6.0, WINDOW, "AcceptLengthAtCeiling"),
        (NEXTN, 5.997, WINDOW, "AcceptLengthAtCeiling"),
        (NEXTN, 5.9, WINDOW, None),
        (NEXTN, 1.0, WINDOW, "AcceptLengthAtOne"),
        (NEXTN, 1.1, WINDOW, None),
        (NEXTN, 6.0, WINDOW - 1, None),
        (NEXTN, 0.0, WINDOW, None),
        (NEXTN, None, WINDOW, None),
        (DSPARK, 8.0, WINDOW, None),
        (DSPARK, 1.0, WINDOW, "AcceptLengthAtOne"),
        (STATED, 8.0, WINDOW, "AcceptLengthAtCeiling"),
        (PLAIN, 1.0, WINDOW, None),
    ],
)
def test_suspicious_are_the_ends_over_a_window(
    decoding: Decoding, length: float | None, requests: int, reason: str | None
) -> None:
    found = suspicion(decoding, length, requests)
    assert (found and found[0]) == reason


@pytest.mark.parametrize(
    ("slo", "performance", "verdict"),
    [
        ({}, {"tpotMs": 1.0}, None),
        ({"tpotMs": 2.5}, {}, None),
        ({"tpotMs": 2.5}, {"tpotMs": 2.5, "ttftMs": 9e9}, (True, "Met", "tpotMs 2.5 <= 2.5")),
        ({"tpotMs": 2.5}, {"tpotMs": 2.6}, (False, "TooSlow", "tpotMs 2.6 > 2.5")),
        ({"tpotMs": 2.5, "ttftMs": 100}, {"tpotMs": 1, "ttftMs": 200}, (False, "TooSlow", "ttftMs 200 > 100")),
    ],
    ids=["nothing asked", "nobody measured", "met", "missed", "one of two missed"],
)
def test_the_wanted_speed(slo: dict[str, Any], performance: dict[str, float], verdict: tuple[Any, ...] | None) -> None:
    found = slo_met(Slo.from_dict(slo), performance)
    assert (found and found[1:]) == verdict


@pytest.mark.parametrize("wrong", [0, -1, "2", True, float("inf"), float("nan")])
def test_a_speed_is_a_number_above_zero(wrong: object) -> None:
    with pytest.raises(BadInput, match="tpotMs: write a number above 0"):
        Slo.from_dict({"tpotMs": wrong})
