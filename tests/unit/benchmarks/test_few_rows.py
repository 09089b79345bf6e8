"""Search for plans of the kernels for few rows, with a stand-in for the GPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from benchmarks import few_rows

from ling_engine.kernels import plans
from ling_engine.kernels.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, COLUMNS = 2560, 768


def start() -> tuple[Plan, Plan]:
    found = plans.experts(HIDDEN, COLUMNS, 9)
    assert found is not None
    return found


def search(
    took: Callable[[tuple[Plan, Plan]], float | None], seconds: float = 30
) -> tuple[tuple[Plan, Plan], list[tuple[Plan, Plan, float]]]:
    return few_rows.searched(start(), HIDDEN, COLUMNS, took, time.monotonic() + seconds)


def test_both_kernels_get_their_fastest_plan() -> None:
    best = (Plan(columns=32, summands=128, warps=2, stages=4), Plan(columns=64, summands=128, warps=8))
    found, tried = search(lambda pair: 100.0 - 10 * sum(a == b for a, b in zip(pair, best, strict=True)))
    assert found == best
    assert len(tried) == len({pair[:2] for pair in tried}) > 50


def test_a_plan_that_is_wrong_or_does_not_run_is_left_out() -> None:
    def took(pair: tuple[Plan, Plan]) -> float | None:
        if pair[0].warps == 2:
            return None
        if pair[0].warps == 8:
            raise RuntimeError("out of resource: shared memory")
        return 50.0 if pair == start() else 60.0

    found, tried = search(took)
    assert found == start()
    assert {up.warps for up, _, _ in tried} == {4}


def test_without_time_the_plan_in_use_is_all_that_is_timed() -> None:
    found, tried = search(lambda _: 1.0, seconds=0)
    assert found == start()
    assert len(tried) == 1


def test_kernels_that_compute_something_else_end_the_search() -> None:
    with pytest.raises(RuntimeError, match="something else than SGLang"):
        search(lambda _: None)


def test_every_candidate_is_whole_programs_that_fit() -> None:
    up, down = start()
    for one in few_rows.candidates(up, COLUMNS, HIDDEN, 2):
        assert one.fits(COLUMNS, HIDDEN)
    for one in few_rows.candidates(down, HIDDEN, COLUMNS, 1):
        assert one.fits(HIDDEN, COLUMNS)
