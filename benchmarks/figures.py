"""A figure: what was measured, and the goal if there is one; printed as `name value unit goal ok|MISS`."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`most`: the goal is at most this; `exactly`: it is this; neither: the value is only told."""

    name: str
    value: float
    unit: str
    most: float | None = None
    exactly: float | None = None
    samples: tuple[float, ...] = field(default=())

    @property
    def ok(self) -> bool:
        if self.exactly is not None:
            return self.value == self.exactly
        return self.most is None or self.value <= self.most

    @property
    def goal(self) -> str:
        if self.exactly is not None:
            return f"={self.exactly:g}"
        return "-" if self.most is None else f"<={self.most:g}"

    def line(self) -> str:
        return f"{self.name} {self.value:.4g} {self.unit} {self.goal} {'ok' if self.ok else 'MISS'}"


def median(name: str, unit: str, samples: Sequence[float], *, most: float | None = None) -> Figure:
    """The middle one of several runs; all of them go into the JSON."""
    return Figure(name=name, value=statistics.median(samples), unit=unit, most=most, samples=tuple(samples))


def write(path: Path, figures: Sequence[Figure], machine: dict[str, object]) -> None:
    """As JSON, beside what they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(each) | {"goal": each.goal, "ok": each.ok} for each in figures]
    path.write_text(json.dumps({"machine": machine, "figures": rows}, indent=1) + "\n")
