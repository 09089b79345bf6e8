"""Sums over requests, and the JSON that tells all of it again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ling_api.errors import BadInput
from ling_bench import result
from ling_bench.counters import Rounds
from ling_bench.stream import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_bench.result import Result, Sample, Side

    type Make[T] = Callable[..., T]

ANSWER = Answer(
    times=(0.05, 0.06, 0.07, 0.09), tokens=11, prompt_tokens=5, cached_tokens=None, rounds=3, finish="length"
)


def test_a_sample_is_in_milliseconds() -> None:
    found = result.sample(4, ANSWER, Rounds(tokens=11, rounds=4, given=10))
    assert (found.index, found.tokens, found.chunks) == (4, 11, 4)
    assert (found.ttft_ms, found.tpot_ms, found.e2e_ms) == pytest.approx((50, 4, 90))
    assert (found.gap_p50_ms, found.gap_max_ms) == pytest.approx((10, 20))
    assert found.accept_length == 2.5
    assert found.step_ms == pytest.approx(10)


def test_without_counters_the_answers_own_count_of_rounds_stands() -> None:
    found = result.sample(0, ANSWER, None)
    assert found.accept_length == pytest.approx(10 / 3)
    assert found.counted_tokens is None


def test_where_nothing_is_drafted_a_step_is_a_token_without_any_counters() -> None:
    silent = replace(ANSWER, rounds=None)
    assert result.sample(0, silent, None).step_ms is None
    assert result.sample(0, silent, None, drafts=0).step_ms == pytest.approx(4)


def test_without_rounds_a_step_is_a_token_and_without_their_count_unknown(make_sample: Make[Sample]) -> None:
    assert make_sample(tpot_ms=2.0, rounds=0.0, given=0.0).step_ms == 2.0
    assert make_sample(tpot_ms=2.0, rounds=None, given=None).step_ms is None


def test_accept_length_is_that_of_all_rounds_not_the_mean_of_requests(
    make_sample: Make[Sample], make_side: Make[Side]
) -> None:
    side = make_side(samples=(make_sample(rounds=10.0, given=60.0), make_sample(1, rounds=90.0, given=90.0)))
    assert side.accept_length == 1.5


def test_the_summary(make_sample: Make[Sample], make_side: Make[Side]) -> None:
    samples = tuple(make_sample(index, tpot_ms=tpot) for index, tpot in enumerate((1.0, 2.0, 3.0, 4.0, 2.0, 6.0)))
    found = result.summary(make_side(samples=samples))
    assert found["tpot_ms"]["mean"] == 3.0
    assert found["tpot_ms"]["low"] < 3.0 < found["tpot_ms"]["high"]
    assert (found["tpot_ms"]["p50"], found["tpot_ms"]["min"], found["tpot_ms"]["max"]) == (2.5, 1.0, 6.0)
    assert found["tokens_per_second"] == pytest.approx(1000 / 3)
    assert found["drift"] == 2.0
    assert found["accept_length"] == pytest.approx(1023 / 320)


def test_four_samples_have_no_interval(make_sample: Make[Sample], make_side: Make[Side]) -> None:
    found = result.summary(make_side(samples=tuple(make_sample(index) for index in range(4))))
    assert (found["tpot_ms"]["low"], found["tpot_ms"]["high"]) == (None, None)


def test_json_and_back(make_result: Make[Result]) -> None:
    found = make_result()
    text = result.to_json(found)
    assert result.from_json(text, "a.json") == found
    value = json.loads(text)
    assert value["schema"] == "ling-bench/1"
    assert value["sides"][0]["summary"]["requests"] == 10
    assert value["sides"][0]["samples"][0]["accept_length"] == pytest.approx(1023 / 320)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "ling-bench/9"}', '{"schema": "ling-bench/1"}'])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^a\.json: "):
        result.from_json(text, "a.json")
