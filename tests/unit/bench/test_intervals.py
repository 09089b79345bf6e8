"""Percentiles and bootstrap intervals, by values that are known otherwise."""

from __future__ import annotations

import math
import random

import pytest

from ling_bench import intervals


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([4.0], 0.99, 4.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.5), ([1.0, 2.0, 3.0, 4.0], 0.25, 1.75),
        (list(map(float, range(101))), 0.99, 99.0), ([5.0, 1.0], 0.0, 1.0), ([5.0, 1.0], 1.0, 5.0),
    ],
    ids=["one", "middle", "between two", "as numpy has it", "hundred and one", "least", "most"],
)  # fmt: skip
def test_percentiles(values: list[float], share: float, wanted: float) -> None:
    assert intervals.percentile(values, share) == pytest.approx(wanted)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        intervals.percentile([], 0.5)


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution_where_that_holds() -> None:
    drawing = random.Random(7)
    values = [drawing.gauss(10, 2) for _ in range(400)]
    mean = sum(values) / 400
    spread = math.sqrt(sum((one - mean) ** 2 for one in values) / 400) / math.sqrt(400)
    found = intervals.mean(values)
    assert found.value == pytest.approx(mean)
    assert found.low == pytest.approx(mean - 1.96 * spread, abs=0.02)
    assert found.high == pytest.approx(mean + 1.96 * spread, abs=0.02)


def test_pairs_that_drift_together_have_a_narrow_ratio_and_a_wide_one_when_resampled_apart() -> None:
    first = [1.0 + number for number in range(12)]
    second = [2 * one for one in first]
    assert intervals.paired_ratio(list(zip(first, second, strict=True))) == pytest.approx((0.5, 0.5, 0.5))
    apart = intervals.unpaired_ratio(first, second)
    assert apart.value == pytest.approx(0.5)
    assert apart.low < 0.4 < 0.6 < apart.high


def test_the_same_samples_give_the_same_interval() -> None:
    pairs = [(1.0, 1.1), (1.2, 1.0), (0.9, 1.0), (1.1, 1.3), (1.0, 0.9)]
    assert intervals.paired_ratio(pairs) == intervals.paired_ratio(pairs)


def test_an_interval_of_95_percent_holds_the_truth_about_that_often() -> None:
    drawing, held = random.Random(3), 0
    for _ in range(40):
        pairs = [(drawing.gauss(5, 1), drawing.gauss(10, 1)) for _ in range(20)]
        found = intervals.paired_ratio(pairs)
        held += found.low <= 0.5 <= found.high
    assert 33 <= held <= 40
