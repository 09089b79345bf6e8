"""How the kernels of few rows are cut, by the sizes of a layer, and how experts are chosen. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROWS: Final = 16  # of a step at most: what a product of tensor cores takes at once
SLOTS: Final = 16  # experts of a row at most
VERIFIED_COLUMNS: Final = 16  # of a state of KDA for a program, where drafts are verified
REPLAYED_COLUMNS: Final = 8  # the same, where those that are confirmed are replayed
_AT_ONCE: Final = 4096  # summands of a score that a program loads at once, at most
_PROCESSORS: Final = 132  # of an H200
_SMALL: Final = 2048  # columns: fewer are read faster by a library
_VAST: Final = 131072  # columns, as of a head
_RANK: Final = 512  # of a Markov head at most: a program has a token's whole row
_PARTS: Final = 4096  # programs of a Markov step at most: each of the next one looks through what all of them found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Columns of a program at a time, summands of an iteration, warps, stages of loads.

    `parts`: programs that share a block of columns (of experts: that share the experts). `programs`: at most so many,
    each with several blocks; 0 = one a block.
    """

    columns: int
    summands: int
    warps: int = 4
    stages: int = 3
    parts: int = 1
    programs: int = 0

    def fits(self, columns: int, summands: float) -> bool:
        """Whether a product of that size is a whole number of blocks and iterations; `summands` of one part, where
        parts share them."""
        return columns % self.columns == 0 and summands % self.summands == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Experts and rows of a program of the router's scores, and its warps: it loads their weights at once."""

    experts: int = 4
    rows: int = 3
    warps: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Markov:
    """Words of a program of a Markov step, of which it multiplies a `tile` at once, and its warps."""

    words: int = 128
    tile: int = 64
    warps: int = 4

    def parts(self, words: int) -> int:
        """Programs of a step."""
        return -(-words // self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`chosen` experts of a row out of the `of_groups` best of `groups`, then the shared ones, `slots` in all.

    `scaled`: whether weights are already multiplied by `scale`, as the sum of experts is later where they are not; a
    shared expert's weight is such that it counts once in the end.
    """

    chosen: int
    slots: int
    groups: int
    of_groups: int
    scale: float = 1.0
    renormalize: bool = True
    scaled: bool = False

    def fits(self, experts: int) -> bool:
        """Whether there are as many, in equal groups, a power of two of these."""
        power = self.groups > 0 and self.groups & (self.groups - 1) == 0
        return power and experts % self.groups == 0 and self.chosen <= self.of_groups * (experts // self.groups)


def experts(hidden: int, columns: int, rows: int) -> tuple[Plan, Plan] | None:
    """Up and down of a layer whose experts are `columns` wide on this rank; None for a size that cannot be cut.

    The fastest of a whole layer by `benchmarks.few_rows` on an H200, for 65 and 513 experts of 768 columns.
    """
    smaller = [Plan(columns=32, summands=step, stages=4) for step in (128, 64, 32)]
    shared = [Plan(columns=32, summands=step, stages=4, parts=4) for step in (256, 128, 64, 32)]
    if rows > 1:
        ups, downs = [Plan(columns=32, summands=256, stages=5), *smaller], shared
    else:
        ups = [Plan(columns=64, summands=128, stages=4), *smaller]
        downs = [Plan(columns=64, summands=128, stages=6, parts=3), *shared]
    up, down = _first(ups, columns, hidden), _first(downs, hidden, columns)
    return None if up is None or down is None else (up, down)


def scores(hidden: int, experts: int) -> Scores | None:
    """Of the router; None for a size that is not a whole number of programs, or whose weights no program can hold."""
    plan = Scores()
    return plan if experts % plan.experts == 0 and hidden <= _AT_ONCE else None


def product(summands: int, columns: int) -> Plan | None:
    """Of a matrix in bf16; None for a small one, and for a size that cannot be cut.

    The fastest by `benchmarks.few_rows` on an H200, of the sizes of Flash.
    """
    if columns < _SMALL:
        return None
    kind = {"columns": 32, "parts": 4}
    if columns >= _VAST:
        kind = {"columns": 64}
    elif columns >= 2 * _SMALL:
        kind = {"columns": 32, "programs": 3 * _PROCESSORS}
    steps = (128, 64, 32)
    return _first([Plan(summands=step, stages=4, **kind) for step in steps], columns, summands / kind.get("parts", 1))


def rounded(summands: int, columns: int) -> Plan | None:
    """Of a matrix in fp8; None for a size that cannot be cut. As `product`."""
    if columns >= _VAST:
        plans = [Plan(columns=64, summands=256)]
    elif columns >= _VAST // 4:
        plans = [Plan(columns=64, summands=128, stages=4)]
    elif columns >= 2 * _SMALL:
        plans = [Plan(columns=32, summands=256, warps=2, stages=4)]
    else:
        shared = [Plan(columns=32, summands=step, warps=2, stages=5, parts=4) for step in (128, 64)]
        if found := _first(shared, columns, summands / 4):
            return found
        plans = []
    return _first([*plans, *(Plan(columns=32, summands=step) for step in (128, 64))], columns, summands)


def markov(words: int, rank: int) -> Markov | None:
    """Of a Markov head; None for one of more words or a higher rank than a step is for."""
    plan = Markov()
    power = rank > 0 and rank & (rank - 1) == 0
    return plan if power and rank <= _RANK and plan.parts(words) <= _PARTS else None


def _first(plans: list[Plan], columns: int, summands: float) -> Plan | None:
    return next((plan for plan in plans if plan.fits(columns, summands)), None)
