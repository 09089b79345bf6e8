"""Memory plan: what a server needs beside the weights, and whether it fits. Pure arithmetic in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The private memory of one server, in bytes by purpose (`kv`, `activations`, ...)."""

    private: Mapping[str, int]

    def __post_init__(self) -> None:
        for purpose, nbytes in self.private.items():
            if nbytes < 0:
                raise BadInput(f"the memory plan's {purpose} is {nbytes} bytes; write 0 or more")

    @property
    def total(self) -> int:
        """Bytes of all purposes."""
        return sum(self.private.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The sum: `weights` + `plans` + `reserve` against `capacity`, all in bytes. `sentence` says it in words."""

    capacity: int
    weights: int
    plans: int
    reserve: int
    sentence: str

    @property
    def needed(self) -> int:
        """Bytes of the sum."""
        return self.weights + self.plans + self.reserve

    @property
    def fits(self) -> bool:
        """Whether the sum is within capacity."""
        return self.needed <= self.capacity


def room(capacity: int, held_set_bytes: Mapping[str, int], plans: Mapping[str, MemoryPlan], reserve: int = 0) -> Room:
    """Adds up weight sets (bytes by name) and the plans of the servers let through (by name); says whether they fit."""
    weights = sum(held_set_bytes.values())
    private = sum(plan.total for plan in plans.values())
    needed = weights + private + reserve
    parts = [
        _part("weights", weights, held_set_bytes),
        _part("plans", private, {name: plan.total for name, plan in plans.items()}),
    ]
    if reserve:
        parts.append(f"reserve {_size(reserve)}")
    verdict = "fits in" if needed <= capacity else f"is {_size(needed - capacity)} more than"
    sentence = f"{' + '.join(parts)} = {_size(needed)}, which {verdict} the capacity of {_size(capacity)}"
    return Room(capacity=capacity, weights=weights, plans=private, reserve=reserve, sentence=sentence)


def _part(what: str, total: int, parts: Mapping[str, int]) -> str:
    if len(parts) < 2:
        return f"{what} {_size(total)}"
    return f"{what} {_size(total)} ({', '.join(f'{name} {_size(nbytes)}' for name, nbytes in sorted(parts.items()))})"


def _size(nbytes: int) -> str:
    """Bytes as a person reads them; rounding shows, so that a sum never seems to fit by it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1 << 10 * power:
            return f"{nbytes / (1 << 10 * power):.4g} {unit}"
    return f"{nbytes} bytes"
