"""Two runs, or two sides of one: ratios with 95 % intervals. Pure.

Sides that took turns are paired by prompt: drift of the machine falls out of the ratio. Runs of different times are
paired by nothing, and are resampled apart. A ratio below 1 says that the first is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput

from . import intervals
from .result import LEAST, METRICS, OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .result import Result, Side

_PASSING: Final = {"load", "took_s"}  # of the client: other in every run


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Of one metric: both means and the ratio; `low` and `high` None with fewer than LEAST samples."""

    metric: str
    first: float
    second: float
    ratio: float
    low: float | None
    high: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`differs`: stamp, first, second; `cautions`: what the reader has to know before the ratios."""

    first: str
    second: str
    paired: bool
    rows: tuple[Row, ...]
    differs: tuple[tuple[str, str, str], ...]
    cautions: tuple[str, ...]


def sides(result: Result) -> Comparison:
    """Of a run with `--against`. Raises BadInput for one with a single side."""
    if len(result.sides) != 2:
        raise BadInput("the result has one side; give a second result, or one of ling-bench run --against")
    first, second = result.sides
    differs = tuple(_differences(first.server, second.server, "server"))
    rows = tuple(row for name in METRICS if (row := _paired(name, first, second)) is not None)
    return Comparison(
        first=first.url, second=second.url, paired=True, rows=rows, differs=differs, cautions=tuple(_few(rows))
    )


def runs(first: Result, second: Result) -> Comparison:
    """Of one-sided runs. Raises BadInput if they were not asked the same, or one was refused."""
    for name, given in (("the first", first), ("the second", second)):
        if given.verdict != OK:
            raise BadInput(f"{name} result is {given.verdict} and compares with nothing: {'; '.join(given.why)}")
        if len(given.sides) != 1:
            raise BadInput(f"{name} result has two sides; ling-bench compare it alone")
    asked = (first.protocol, second.protocol), (first.workload["hash"], second.workload["hash"])
    for what, (this, that) in zip(("protocol", "workload"), asked, strict=True):
        if this != that:
            raise BadInput(f"the {what} is not the same ({_short(this)}, {_short(that)}): run both with the same flags")
    one, two = first.sides[0], second.sides[0]
    rows = tuple(row for name in METRICS if (row := _unpaired(name, one, two)) is not None)
    differs = (*_differences(one.server, two.server, "server"), *_differences(first.client, second.client, "client"))
    cautions = (*_few(rows), *_acceptance(first.acceptance, second.acceptance))
    return Comparison(
        first=one.url, second=two.url, paired=False, rows=rows, differs=differs, cautions=(_APART, *cautions)
    )


_APART: Final = (
    "measured one after the other: a machine that drifted between the runs shows as a difference; "
    "ling-bench run --against takes turns"
)


def _few(rows: tuple[Row, ...]) -> Iterator[str]:
    least = min((row.samples for row in rows), default=0)
    if least < LEAST:
        yield f"{least} samples: too few for intervals, which need {LEAST}"
    elif least < 2 * LEAST:
        yield f"{least} samples: the intervals are narrower than they ought to be; 10 and more are better"


def _acceptance(one: str | None, two: str | None) -> Iterator[str]:
    if one != two:
        yield f"acceptance is {one or 'not said'} and {two or 'not said'}: compare the step, not the time per token"


def _paired(metric: str, first: Side, second: Side) -> Row | None:
    others = {one.index: getattr(one, metric) for one in second.samples}
    found = [(getattr(one, metric), others.get(one.index)) for one in first.samples]
    pairs = [(one, two) for one, two in found if one is not None and two is not None]
    if not pairs:
        return None
    interval = intervals.paired_ratio(pairs) if len(pairs) >= LEAST else None
    return _row(metric, [one for one, _ in pairs], [two for _, two in pairs], interval, len(pairs))


def _unpaired(metric: str, first: Side, second: Side) -> Row | None:
    one, two = first.values(metric), second.values(metric)
    if not one or not two:
        return None
    least = min(len(one), len(two))
    return _row(metric, one, two, intervals.unpaired_ratio(one, two) if least >= LEAST else None, least)


def _row(metric: str, one: list[float], two: list[float], interval: intervals.Interval | None, samples: int) -> Row:
    means = sum(one) / len(one), sum(two) / len(two)
    return Row(
        metric=metric, first=means[0], second=means[1], ratio=means[0] / means[1], samples=samples,
        low=interval.low if interval else None, high=interval.high if interval else None,
    )  # fmt: skip


def _differences(one: Any, two: Any, name: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(one, dict) and isinstance(two, dict):
        yield from _of_objects(one, two, name)
    elif one != two:
        yield name, _short(one), _short(two)


def _of_objects(one: Mapping[str, Any], two: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, str]]:
    for key in sorted({*one, *two} - _PASSING):
        yield from _differences(one.get(key), two.get(key), f"{name}.{key}")


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
