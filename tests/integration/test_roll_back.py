"""With a draft or without one it is the same answer; and what breaks a roll-back is noticed by exactly that check."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.speculation import DIALS, accept_length, bench, corrupt, run, tokens

from ling_engine.reference.bounds import Bounds, Sampling
from ling_engine.reference.kda import KdaState, KdaStep
from ling_engine.reference.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_engine.reference.sequence import Step

DRAFTS = [("nextn", 3), ("dspark", 4)]
HELLO = list(b"Hello, world")
DRAWN = Sampling(temperature=0.8, top_p=0.95, seed=7)


@pytest.mark.parametrize(
    ("level", "sampling"),
    [(0.9, Sampling()), (0.6, Sampling()), (0.3, Sampling()), (0.6, DRAWN)],
    ids=["0.9", "0.6", "0.3", "0.6-drawn"],
)
@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_a_draft_changes_no_token(level: float, name: str, window: int, sampling: Sampling) -> None:
    made = bench(DIALS[level])
    plain = run(made, "", 0, HELLO, sampling=sampling)
    found = run(made, name, window, HELLO, sampling=sampling)
    assert tokens(found) == tokens(plain)
    assert len(tokens(found)) == 32
    assert all(one.correct is None for one in plain)
    assert level > 0.6 or any(one.correct not in (None, window) for one in found)  # something was rolled back


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_a_prompt_of_several_pieces_reaches_the_draft_whole(name: str, window: int) -> None:
    made, prompt = bench(DIALS[0.9]), [32 + (7 * i) % 90 for i in range(130)]
    found = run(made, name, window, prompt, limit=24)
    assert tokens(found) == tokens(run(made, "", 0, prompt, limit=24))
    assert accept_length(found) > 1.5


@pytest.mark.parametrize(("name", "window"), DRAFTS)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_an_answer_ends_at_its_limit_within_a_round(name: str, window: int, limit: int) -> None:
    made = bench(DIALS[0.9])
    whole = tokens(run(made, "", 0, HELLO, limit=8))
    found = run(made, name, window, HELLO, limit=limit)
    assert tokens(found) == whole[:limit]
    assert all(len(one.tokens) <= window + 1 for one in found)


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_an_answer_ends_with_eos_within_a_round(name: str, window: int) -> None:
    made = bench(DIALS[0.9])
    whole = tokens(run(made, "", 0, HELLO))
    for at in range(12):
        found = tokens(run(made, name, window, HELLO, eos=whole[at]))
        assert found == whole[: whole.index(whole[at]) + 1]


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_prompt_and_answer_may_fill_the_context(name: str, window: int) -> None:
    """The last rounds write drafts behind its end."""
    made = bench(DIALS[0.9])
    found = run(made, name, window, HELLO, limit=30 - len(HELLO), context=30)
    assert tokens(found) == tokens(run(made, "", 0, HELLO, limit=30 - len(HELLO), context=30))


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_one_answer_leaves_nothing_for_the_next(name: str, window: int) -> None:
    decoder = bench(DIALS[0.6]).decoder(name, 96, window)
    with torch.inference_mode():
        answers = [
            list(decoder.generate(prompt, Bounds(limit=20), lambda: True)) for prompt in (HELLO, list(b"x" * 70), HELLO)
        ]
    assert answers[0] == answers[2]


def test_an_answer_that_nobody_wants_ends_before_its_next_round() -> None:
    wanted = iter([True, True, False])
    decoder = bench(DIALS[0.9]).decoder("nextn", 96, 3)
    with torch.inference_mode():
        assert len(list(decoder.generate(HELLO, Bounds(limit=20), lambda: next(wanted)))) == 2


def one_row_late(self: Sequence, step: Step, rows: int) -> None:
    """KDA's state is committed with the row of the first refused draft."""
    self.length += rows
    self.kda = {layer: done.state(min(rows + 1, len(step.hidden))) for layer, done in step.kda.items()}


def convolution_kept(self: KdaStep, kept: int) -> KdaState:
    """The convolution's inputs stay those of the last row, right or not."""
    state = right_state(self, kept)
    return KdaState(self.rows[len(self.rows) - len(state.conv) :].clone(), state.memory)


def memory_kept(self: KdaStep, kept: int) -> KdaState:
    return KdaState(right_state(self, kept).conv, self.after)


def cache_not_trimmed(self: Sequence, step: Step, rows: int) -> None:
    """MLA's cache counts refused rows."""
    self.length += len(step.hidden)
    self.kda = {layer: done.state(rows) for layer, done in step.kda.items()}


right_state = KdaStep.state
MUTATIONS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "kda-state-one-row-late": (Sequence, "commit", one_row_late),
    "kda-memory-not-rolled-back": (KdaStep, "state", memory_kept),
    "conv-state-not-rolled-back": (KdaStep, "state", convolution_kept),
    "mla-cache-not-trimmed": (Sequence, "commit", cache_not_trimmed),
}


@pytest.mark.parametrize(("name", "window"), DRAFTS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_roll_back_changes_tokens(
    mutation: str, name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above would fail: they see this part of the state."""
    made = bench(DIALS[0.3])
    plain = tokens(run(made, "", 0, HELLO))
    monkeypatch.setattr(*MUTATIONS[mutation])
    assert tokens(run(made, name, window, HELLO)) != plain


ZEROED = [("nextn", 3, "eh_proj.weight"), ("dspark", 4, "markov_head.markov_w2.weight")]


@pytest.mark.parametrize(("name", "window", "tensor"), ZEROED)
def test_a_zeroed_draft_tensor_costs_accept_length_and_no_token(name: str, window: int, tensor: str) -> None:
    dial = DIALS[0.9]
    whole, broken = bench(dial), corrupt(name, lambda one: one == tensor, dial)
    good, bad = run(whole, name, window, HELLO), run(broken, name, window, HELLO)
    assert tokens(bad) == tokens(good)
    assert accept_length(bad) < 0.7 * accept_length(good)


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_a_corrupted_draft_gives_one_token_a_round_and_changes_none(name: str, window: int) -> None:
    dial = DIALS[0.9]
    found = run(corrupt(name, lambda _tensor: True, dial), name, window, HELLO)
    assert tokens(found) == tokens(run(bench(dial), "", 0, HELLO))
    assert accept_length(found) < 1.1


@pytest.mark.parametrize(("name", "window"), DRAFTS)
def test_acceptance_falls_as_the_dial_is_turned(name: str, window: int) -> None:
    lengths = [accept_length(run(bench(DIALS[level]), name, window, HELLO)) for level in (0.9, 0.6, 0.3)]
    assert all(one > two for one, two in pairwise(lengths))
