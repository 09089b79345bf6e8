"""Ratios of two sides or two runs, and what makes two results no match for each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ling_api.errors import BadInput
from ling_bench import compare, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_bench.result import Result, Sample, Side

    type Make[T] = Callable[..., T]


def slower(side: Side, factor: float, **changed: Any) -> Side:
    samples = tuple(replace(one, tpot_ms=(one.tpot_ms or 0) * factor) for one in side.samples)
    return replace(side, samples=samples, url="http://b", **changed)


def rows(found: compare.Comparison) -> dict[str, compare.Row]:
    return {row.metric: row for row in found.rows}


def test_sides_that_took_turns_are_paired_by_prompt(make_side: Make[Side], make_result: Make[Result]) -> None:
    side = make_side()
    found = compare.sides(make_result(side, slower(side, 2.0)))
    tpot, step = rows(found)["tpot_ms"], rows(found)["step_ms"]
    assert (tpot.ratio, tpot.low, tpot.high) == pytest.approx((0.5, 0.5, 0.5)), "all that varies is the prompt"
    assert step.ratio == pytest.approx(0.5)
    assert found.paired


def test_runs_of_different_times_are_not_paired_and_the_reader_is_told(
    make_side: Make[Side], make_result: Make[Result]
) -> None:
    side = make_side()
    found = compare.runs(make_result(side), make_result(slower(side, 2.0)))
    tpot = rows(found)["tpot_ms"]
    assert tpot.ratio == pytest.approx(0.5)
    assert tpot.low is not None
    assert tpot.high is not None
    assert tpot.low < 0.5 < tpot.high
    assert not found.paired
    assert "takes turns" in found.cautions[0]


def test_the_same_speed_at_another_accept_length_shows_in_the_step(
    make_sample: Make[Sample], make_side: Make[Side], make_result: Make[Result]
) -> None:
    one = make_side(samples=tuple(make_sample(i, tpot_ms=2.0, rounds=200.0, given=800.0) for i in range(5)))
    two = make_side(samples=tuple(make_sample(i, tpot_ms=2.0, rounds=400.0, given=800.0) for i in range(5)))
    found = rows(compare.sides(make_result(one, two)))
    assert found["tpot_ms"].ratio == 1.0
    assert found["step_ms"].ratio == 2.0


def test_few_samples_have_no_interval_and_it_says_so(
    make_sample: Make[Sample], make_side: Make[Side], make_result: Make[Result]
) -> None:
    side = make_side(samples=tuple(make_sample(index) for index in range(4)))
    found = compare.sides(make_result(side, side))
    assert rows(found)["tpot_ms"].low is None
    assert "too few" in found.cautions[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload": {"hash": "sha256:11"}}, "workload is not the same"),
        ({"protocol": {"name": "custom"}}, "protocol is not the same"),
        ({"verdict": "refused", "why": ("accept length 9",)}, "accept length 9"),
    ],
    ids=["other prompts", "other sizes", "refused"],
)
def test_what_does_not_compare_is_refused(make_result: Make[Result], change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        compare.runs(make_result(), make_result(**change))


def test_one_side_alone_does_not_compare(make_result: Make[Result]) -> None:
    with pytest.raises(BadInput, match="give a second result"):
        compare.sides(make_result())


def test_what_else_is_not_the_same_is_listed(make_side: Make[Side], make_result: Make[Result]) -> None:
    one = make_result(make_side(), client={"cores": 2, "load": 0.1, "gpus": ["H200, 580.1"]})
    two = make_result(
        make_side(server={"engine": "SGLang", "version": "0.5.24"}), acceptance="simulated",
        client={"cores": 2, "load": 9.1, "gpus": ["H200, 590.2"]},
    )  # fmt: skip
    found = compare.runs(one, two)
    assert ("server.version", "0.5.23", "0.5.24") in found.differs
    assert ("client.gpus", "['H200, 580.1']", "['H200, 590.2']") in found.differs
    assert not [name for name, _, _ in found.differs if name == "client.load"]
    assert any("acceptance is real and simulated" in caution for caution in found.cautions)
    text = report.comparison(found)
    assert "95 %" in text
    assert "0.5.24" in text
