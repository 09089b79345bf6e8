"""Percentiles, means and ratios with their 95 % intervals by bootstrap. Pure: resamples are drawn with a fixed seed.

The percentile bootstrap: as many samples as there are, drawn with replacement, RESAMPLES times; the interval is what
the middle 95 % of those means (or ratios of means) span. With few samples it is narrower than it ought to be.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESAMPLES = 10_000
_LOW, _HIGH = 0.025, 0.975


class Interval(NamedTuple):
    """A figure and where it lies with 95 % confidence, all in the figure's own unit."""

    value: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of the ordered values, the two beside it weighed. Raises ValueError if empty."""
    if not values:
        raise ValueError("no values")
    ordered, at = sorted(values), share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def mean(values: Sequence[float], seed: int = 1) -> Interval:
    """The mean of samples that do not depend on each other."""
    drawing = random.Random(seed)
    return _interval(_mean(values), lambda: _mean(drawing.choices(values, k=len(values))))


def paired_ratio(pairs: Sequence[tuple[float, float]], seed: int = 1) -> Interval:
    """Mean of the first by mean of the second; a pair was measured together and stays together in the resamples."""
    drawing = random.Random(seed)
    return _interval(_ratio(pairs), lambda: _ratio(drawing.choices(pairs, k=len(pairs))))


def unpaired_ratio(first: Sequence[float], second: Sequence[float], seed: int = 1) -> Interval:
    """Mean of `first` by mean of `second`, measured apart: each is resampled by itself."""
    drawing = random.Random(seed)

    def again() -> float:
        return _mean(drawing.choices(first, k=len(first))) / _mean(drawing.choices(second, k=len(second)))

    return _interval(_mean(first) / _mean(second), again)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(one for one, _ in pairs) / sum(two for _, two in pairs)


def _interval(value: float, resample: Callable[[], float]) -> Interval:
    found = sorted(resample() for _ in range(RESAMPLES))
    return Interval(value, found[int(_LOW * RESAMPLES)], found[int(_HIGH * RESAMPLES)])
