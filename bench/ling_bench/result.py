"""What a run found, as frozen values, and the same as JSON (`schema`: ling-bench/1). Pure.

A result has one side, or two that took turns (`run --against`). Times are milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput

from . import intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .counters import Rounds
    from .stream import Answer

SCHEMA: Final = "ling-bench/1"
OK, REFUSED, FAILED = "ok", "refused", "failed"
LEAST: Final = 5  # samples for an interval; fewer tell nothing about how they spread
METRICS: Final = {  # what is compared, and where the table says what it is
    "tpot_ms": "TPOT, ms",
    "step_ms": "step = TPOT x accept length, ms",
    "ttft_ms": "TTFT, ms",
    "e2e_ms": "whole answer, ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured request. `rounds` and `given`: verify rounds and the tokens they gave; None: nobody counts them."""

    index: int  # of its prompt
    ttft_ms: float
    tpot_ms: float | None
    e2e_ms: float
    prompt_tokens: int | None
    tokens: int
    chunks: int
    gap_p50_ms: float | None  # from chunk to chunk
    gap_p99_ms: float | None
    gap_max_ms: float | None
    cached_tokens: int | None
    finish: str | None
    rounds: float | None = None
    given: float | None = None
    counted_tokens: float | None = None  # how far the endpoint's own counter of tokens went meanwhile

    @property
    def accept_length(self) -> float | None:
        return self.given / self.rounds if self.rounds and self.given is not None else None

    @property
    def step_ms(self) -> float | None:
        """Of one verify round; without drafts, of one token."""
        if self.tpot_ms is None or self.rounds is None:
            return None
        return self.tpot_ms * (self.accept_length or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An endpoint and what it answered. `server`: what it tells of itself; `drafts`: at most so many a round."""

    url: str
    model: str
    server: dict[str, Any]
    samples: tuple[Sample, ...]
    rounds_from: str | None = None  # whose count of verify rounds it is
    drafts: int | None = None
    drafts_from: str | None = None
    connections: int = 1

    @property
    def accept_length(self) -> float | None:
        """Of all requests together: tokens by rounds."""
        rounds = sum(one.rounds or 0 for one in self.samples)
        return sum(one.given or 0 for one in self.samples) / rounds if rounds else None

    def values(self, metric: str) -> list[float]:
        """Of the samples that have it."""
        found = (getattr(one, metric) for one in self.samples)
        return [value for value in found if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`why`: what refused it or made it fail, a sentence each."""

    began: str
    tool: str
    protocol: dict[str, Any]
    workload: dict[str, Any]
    acceptance: str | None  # real | simulated | predictable | none; None: not said and not seen
    client: dict[str, Any]
    sides: tuple[Side, ...]
    verdict: str = OK
    why: tuple[str, ...] = field(default=())


def sample(index: int, answer: Answer, counted: Rounds | None, drafts: int | None = None) -> Sample:
    """`counted`: by the endpoint's counters; without them the answer's own word for its rounds counts."""
    gaps = [gap * 1000 for gap in answer.gaps]
    rounds: tuple[float | None, float | None] = (None, None)
    if counted is not None:
        rounds = (counted.rounds, counted.given)
    elif drafts == 0:
        rounds = (0.0, 0.0)
    elif answer.rounds is not None:
        rounds = (answer.rounds, answer.tokens - 1 if answer.rounds else 0)
    return Sample(
        index=index,
        ttft_ms=answer.times[0] * 1000,
        tpot_ms=None if answer.tpot is None else answer.tpot * 1000,
        e2e_ms=answer.times[-1] * 1000,
        prompt_tokens=answer.prompt_tokens,
        tokens=answer.tokens,
        chunks=len(answer.times),
        gap_p50_ms=intervals.percentile(gaps, 0.5) if gaps else None,
        gap_p99_ms=intervals.percentile(gaps, 0.99) if gaps else None,
        gap_max_ms=max(gaps, default=None),
        cached_tokens=answer.cached_tokens,
        finish=answer.finish,
        rounds=rounds[0],
        given=rounds[1],
        counted_tokens=None if counted is None else counted.tokens,
    )


def spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Mean with its 95 % interval (None below LEAST samples), median, least and most; None without values."""
    if not values:
        return None
    mean = intervals.mean(values) if len(values) >= LEAST else None
    return {
        "mean": sum(values) / len(values), "low": mean and mean.low, "high": mean and mean.high,
        "p50": intervals.percentile(values, 0.5), "min": min(values), "max": max(values),
    }  # fmt: skip


def summary(side: Side) -> dict[str, Any]:
    """Of a side. `drift`: mean TPOT of the later half by that of the earlier."""
    tpot = side.values("tpot_ms")
    half = len(tpot) // 2
    found: dict[str, Any] = {name: spread(side.values(name)) for name in METRICS}
    return found | {
        "requests": len(side.samples),
        "tokens": sum(one.tokens for one in side.samples),
        "tokens_per_second": 1000 * len(tpot) / sum(tpot) if tpot else None,
        "accept_length": side.accept_length,
        "gap_p50_ms": _middle(side.values("gap_p50_ms")),
        "gap_p99_ms": _middle(side.values("gap_p99_ms")),
        "gap_max_ms": max(side.values("gap_max_ms"), default=None),
        "drift": (sum(tpot[-half:]) / sum(tpot[:half])) if half else None,
    }


def _middle(values: Sequence[float]) -> float | None:
    return intervals.percentile(values, 0.5) if values else None


def to_json(result: Result) -> str:
    """Samples, and beside them what is computed from them."""
    value = {"schema": SCHEMA, **asdict(result)}
    for told, side in zip(value["sides"], result.sides, strict=True):
        told["summary"] = summary(side)
        told["samples"] = [
            row | {"accept_length": one.accept_length, "step_ms": one.step_ms}
            for row, one in zip(told["samples"], side.samples, strict=True)
        ]
    return json.dumps(value, indent=1)


def from_json(text: str, file: str) -> Result:
    """Raises BadInput for anything but a result."""
    try:
        value = json.loads(text)
        if value["schema"] != SCHEMA:
            raise BadInput(f"{file}: its schema is {value['schema']!r}; this program reads {SCHEMA}")
        sides = tuple(_side(side) for side in value["sides"])
        kept = _known(Result, value) | {"sides": sides, "why": tuple(value["why"])}
        return Result(**kept)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file}: not a result of ling-bench run ({type(error).__name__}: {error})") from None


def _side(value: Mapping[str, Any]) -> Side:
    samples = tuple(Sample(**_known(Sample, one)) for one in value["samples"])
    return Side(**_known(Side, value) | {"samples": samples})


def _known(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: item for name, item in value.items() if name in names}
