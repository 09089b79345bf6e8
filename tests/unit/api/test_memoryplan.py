"""The sum that decides whether a server is let through."""

from __future__ import annotations

import pytest

from ling_api.errors import BadInput
from ling_api.memoryplan import MemoryPlan, room

GIB = 1 << 30
PLAN = MemoryPlan({"kv": GIB, "activations": GIB // 2})


def test_a_plan_is_the_sum_of_its_purposes() -> None:
    assert PLAN.total == 3 * GIB // 2
    assert MemoryPlan({}).total == 0


def test_a_negative_purpose_is_refused() -> None:
    with pytest.raises(BadInput, match="kv is -1 bytes"):
        MemoryPlan({"kv": -1})


@pytest.mark.parametrize(
    ("capacity", "sets", "plans", "reserve", "fits"),
    [
        (0, {}, {}, 0, True),
        (GIB, {"target:0": GIB}, {}, 0, True),
        (GIB, {"target:0": GIB}, {}, 1, False),
        (4 * GIB, {"target:0": GIB}, {"a": PLAN, "b": PLAN}, 0, True),
        (4 * GIB - 1, {"target:0": GIB}, {"a": PLAN, "b": PLAN}, 0, False),
        (6 * GIB, {"old:0": 2 * GIB, "new:0": 2 * GIB}, {"a": PLAN}, GIB // 2, True),
    ],
    ids=["nothing", "just", "one byte over", "two servers", "two servers, one byte over", "two sets"],
)
def test_what_fits(capacity: int, sets: dict[str, int], plans: dict[str, MemoryPlan], reserve: int, fits: bool) -> None:
    result = room(capacity, sets, plans, reserve)
    assert result.fits is fits
    assert result.needed == sum(sets.values()) + sum(plan.total for plan in plans.values()) + reserve
    assert ("which fits in" in result.sentence) is fits


def test_the_sentence_names_the_sum_that_did_not_fit() -> None:
    result = room(4 * GIB, {"target:0": 3 * GIB}, {"pod-a": PLAN, "pod-b": PLAN}, GIB)
    assert result.sentence == (
        "weights 3 GiB + plans 3 GiB (pod-a 1.5 GiB, pod-b 1.5 GiB) + reserve 1 GiB = 7 GiB, "
        "which is 3 GiB more than the capacity of 4 GiB"
    )


def test_small_figures_are_not_rounded_away() -> None:
    assert "is 1 bytes more than the capacity of 0 bytes" in room(0, {"target:0": 1}, {}).sentence
