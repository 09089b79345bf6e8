"""How the kernels of few rows are cut, by the sizes of a layer. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Columns of a program, summands of an iteration, warps, stages of loads.

    `ahead`: weights are asked for before the kernel in front has ended, where programs are launched that early.
    """

    columns: int
    summands: int
    warps: int = 4
    stages: int = 3
    ahead: bool = False

    def fits(self, columns: int, summands: int) -> bool:
        """Whether a product of that size is a whole number of programs and iterations."""
        return columns % self.columns == 0 and summands % self.summands == 0


def experts(hidden: int, columns: int) -> tuple[Plan, Plan] | None:
    """Up and down of a layer whose experts are `columns` wide on this rank; None for a size that cannot be cut."""
    up = _first([Plan(columns=16, summands=step) for step in (256, 128, 64, 32)], columns, hidden)
    down = _first([Plan(columns=16, summands=step, ahead=True) for step in (256, 128, 64, 32)], hidden, columns)
    return None if up is None or down is None else (up, down)


def router(hidden: int, experts: int) -> Plan | None:
    """Of the scores."""
    return _first([Plan(columns=8, summands=step, warps=2, ahead=True) for step in (256, 128, 64)], experts, hidden)


def _first(plans: list[Plan], columns: int, summands: int) -> Plan | None:
    return next((plan for plan in plans if plan.fits(columns, summands)), None)
