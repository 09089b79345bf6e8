"""The rows that a comparison with SGLang yields, and how they are printed; works in any environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor of both engines, over all layers of a kind."""

    part: str
    what: str
    oracle: str  # what of SGLang it was compared with
    numbers: int
    error: float  # largest absolute difference
    size: float  # largest absolute value of SGLang's

    @property
    def relative(self) -> float:
        return self.error / max(self.size, 1e-30)


class Table:
    """Collects comparisons; those of the same part, thing and oracle become one row."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[int, float, float]] = {}

    def add(self, part: str, what: str, oracle: str, ours: Tensor, theirs: Tensor) -> None:
        """Raises AssertionError when the shapes differ or a number is none."""
        assert ours.shape == theirs.shape, f"{part}, {what}: {tuple(ours.shape)} against {tuple(theirs.shape)}"
        ours, theirs = ours.double(), theirs.double()
        error, size = (ours - theirs).abs().max().item(), theirs.abs().max().item()
        assert error == error, f"{part}, {what}: not a number"  # NaN alone differs from itself
        numbers, worst, largest = self._found.get((part, what, oracle), (0, 0.0, 0.0))
        self._found[part, what, oracle] = numbers + ours.numel(), max(worst, error), max(largest, size)

    def rows(self) -> list[dict[str, Any]]:
        return [
            asdict(Row(part=part, what=what, oracle=oracle, numbers=numbers, error=error, size=size))
            for (part, what, oracle), (numbers, error, size) in self._found.items()
        ]


def text(rows: Iterable[Row]) -> str:
    """As a table of Markdown."""
    lines = [
        "| part | compared | SGLang's side | numbers | max abs difference | largest value |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {r.part} | {r.what} | {r.oracle} | {r.numbers:,} | {r.error:.1e} | {r.size:.3g} |" for r in rows]
    return "\n".join(lines)
