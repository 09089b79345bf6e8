"""Answers of two engines may part where two tokens nearly tie, and nowhere else."""

from __future__ import annotations

import pytest
from benchmarks.gpu import ties
from benchmarks.gpu.asking import Answer
from benchmarks.gpu.parity import first_difference

TOPS = [
    [(-0.1, 5), (-2.0, 6)],
    [(-0.7, 7), (-0.75, 8), (-4.0, 9)],
    [(-0.2, 1), (-3.0, 2)],
    [(-0.3, 1), (-0.9, 2)],
]


@pytest.mark.parametrize(
    ("one", "two", "gap", "near"),
    [(7, 8, 0.05, True), (8, 7, 0.05, True), (7, 9, 3.3, False), (7, 10, None, False)],
    ids=["near tie", "the other way", "far apart", "not among the best"],
)
def test_the_gap_where_answers_part(one: int, two: int, gap: float | None, near: bool) -> None:
    found = ties.parting(TOPS, one, two, 1)
    assert found.gap == (gap if gap is None else pytest.approx(gap))
    assert found.near is near


def test_how_many_positions_are_closer_calls() -> None:
    assert ties.parting(TOPS, 7, 8, 1).closer == 0
    assert ties.parting(TOPS, 1, 2, 3).closer == 0.25


def test_rows_are_those_of_the_answer() -> None:
    """SGLang tells one row for every token from `logprob_start_len` on, none for the first of a text."""
    found = {"meta_info": {"input_top_logprobs": [None, [[-1.0, 3, None]], [[-0.5, 4, None], [-2, 9, None]]]}}
    assert ties.rows_of(found, 2) == [[(-1.0, 3)], [(-0.5, 4), (-2.0, 9)]]


def test_the_first_difference_counts_the_end_of_the_shorter() -> None:
    def answer(*tokens: int) -> Answer:
        return Answer(tokens=tokens, times=(0.0,), began=0.0, rounds=1)

    assert first_difference(answer(1, 2), answer(1, 2)) is None
    assert first_difference(answer(1, 2), answer(1, 3)) == 1
    assert first_difference(answer(1, 2), answer(1)) == 1
