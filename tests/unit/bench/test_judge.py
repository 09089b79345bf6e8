"""What can not be true, or is not what was asked for, is refused with a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_bench import judge, protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_bench.result import Sample, Side

    type Make[T] = Callable[..., T]

PUBLISHED = protocol.random_prompts()


def test_an_honest_side_is_not_refused(make_side: Make[Side]) -> None:
    assert judge.reasons(PUBLISHED, make_side()) == []


@pytest.mark.parametrize(
    ("rounds", "drafts", "refused"),
    [(170.5, 5, False), (170.0, 5, True), (170.0, 6, False), (170.0, None, False), (1100.0, 5, True)],
    ids=["6 = 5 + 1", "above it", "more drafts", "drafts not known", "below 1"],
)
def test_no_round_gives_more_than_its_drafts_and_one_nor_nothing(
    make_sample: Make[Sample], make_side: Make[Side], rounds: float, drafts: int | None, refused: bool
) -> None:
    side = make_side(samples=(make_sample(rounds=rounds),), drafts=drafts)
    found = judge.reasons(PUBLISHED, side)
    assert len(found) == refused
    assert all("accept length" in why and why.startswith("http://a") for why in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": 317, "counted_tokens": 317.0}, "does the endpoint know ignore_eos"),
        ({"prompt_tokens": 8193}, "was counted as 8193"),
        ({"cached_tokens": 512}, "512 tokens of prompts came from a prefix cache"),
        ({"counted_tokens": 2048.0}, "others are being answered"),
    ],
    ids=["too short", "a longer prompt", "cached", "other clients"],
)
def test_a_broken_protocol_is_refused(
    make_sample: Make[Sample], make_side: Make[Side], change: dict[str, Any], said: str
) -> None:
    side = make_side(samples=(make_sample(), make_sample(1, **change)))
    (why,) = judge.reasons(PUBLISHED, side)
    assert said in why


def test_answers_of_a_replay_end_where_they_end(make_sample: Make[Sample], make_side: Make[Side]) -> None:
    side = make_side(samples=(make_sample(tokens=17, counted_tokens=17.0, prompt_tokens=9, cached_tokens=4),))
    assert judge.reasons(protocol.replay(), side) == []


def test_endpoints_that_count_nothing_are_not_refused_for_it(make_sample: Make[Sample], make_side: Make[Side]) -> None:
    side = make_side(samples=(make_sample(rounds=None, given=None, counted_tokens=None, prompt_tokens=None),))
    assert judge.reasons(PUBLISHED, side) == []
