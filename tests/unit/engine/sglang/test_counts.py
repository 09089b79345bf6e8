"""SGLang's counters of a request, added up into one record."""

from types import SimpleNamespace
from typing import Any

import pytest

from ling_engine.requests import RequestRecord
from ling_engine.sglang.counts import Count, accepted


def batch(tokens: int, rounds: int = 0, correct: int = 0, retractions: int = 0) -> Any:
    """An output batch with one row of totals."""
    return SimpleNamespace(
        completion_tokens=[tokens],
        retraction_counts=[retractions],
        spec_verify_ct=[rounds],
        spec_num_correct_drafts=[correct],
    )


def shown(*outputs: Any, streamed: bool = True) -> RequestRecord:
    record = RequestRecord()
    count = Count(record, streamed=streamed)
    for output in outputs:
        count.output(output, 0, None)
    return record


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        pytest.param([batch(1)], (1, 0, 0, 0), id="prefill gives one token and no round"),
        pytest.param([batch(1), batch(2), batch(3)], (3, 0, 0, 0), id="plain decoding has no rounds"),
        pytest.param([batch(1), batch(7, 1, 5), batch(13, 2, 10)], (13, 2, 12, 10), id="all of 5 drafts, twice"),
        pytest.param([batch(1), batch(2, 1, 0), batch(5, 2, 2)], (5, 2, 4, 2), id="none, then 2"),
        pytest.param([batch(8, 2, 5)], (8, 2, 7, 5), id="an answer in one bundle"),
        pytest.param([batch(1), batch(4, 1, 5)], (4, 1, 3, 5), id="the limit cuts a round's tokens"),
        pytest.param([batch(1), batch(3, 1, 1), batch(4, 1, 1, 1)], (4, 1, 2, 1), id="a retraction prefills again"),
    ],
)
def test_totals_become_a_record(outputs: list[Any], wanted: tuple[int, int, int, int]) -> None:
    record = shown(*outputs)
    assert (record.tokens, record.rounds, record.accepted, record.correct) == wanted


@pytest.mark.parametrize("drafts", [1, 5, 8])
def test_the_accept_length_never_exceeds_the_drafts_and_one(drafts: int) -> None:
    """SGLang's own figure does: it counts the prefill's token to the rounds."""
    rounds, tokens = 3, 1 + 3 * (drafts + 1)
    record = shown(batch(1), batch(tokens, rounds, rounds * drafts))
    assert tokens / rounds > drafts + 1
    assert record.accepted / record.rounds == drafts + 1


def test_batches_without_counters_of_speculation_are_plain_decoding() -> None:
    plain = SimpleNamespace(completion_tokens=[3], retraction_counts=[0], spec_verify_ct=None)
    record = shown(plain)
    assert (record.tokens, record.rounds) == (3, 0)


def test_a_request_of_several_answers_is_their_sum() -> None:
    record = RequestRecord()
    for count in (Count(record, streamed=True), Count(record, streamed=True)):
        count.output(batch(1), 0, None)
        count.output(batch(6, 1, 4), 0, None)
    assert (record.tokens, record.rounds, record.accepted, record.correct) == (12, 2, 10, 8)


@pytest.mark.parametrize(
    ("streamed", "told"), [(False, True), (True, False)], ids=["in bundles: the scheduler's word", "streamed: arrival"]
)
def test_the_first_token_is_timed_where_it_was_first_there(streamed: bool, told: bool) -> None:
    record = RequestRecord()
    record.began -= 10.0
    times = SimpleNamespace(prefill_finished_time=record.began + 4.0)
    Count(record, streamed=streamed).output(batch(50), 0, times)
    assert record.ttft is not None
    assert (record.ttft == pytest.approx(4.0)) is told
    assert told or record.ttft >= 10.0


@pytest.mark.parametrize("since", [0.0, -5.0, 1e9], ids=["unknown", "before the request", "in the future"])
def test_a_nonsensical_time_of_the_first_token_is_not_believed(since: float) -> None:
    record = RequestRecord()
    record.token(2, record.began + since if since else 0.0)
    assert record.ttft is not None
    assert 0 <= record.ttft < 1.0


def test_accepted_is_never_negative() -> None:
    assert accepted(1, 3) == 0
