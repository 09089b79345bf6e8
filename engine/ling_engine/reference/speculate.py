"""Speculative decoding: a draft guesses tokens, the target checks them all in one step and keeps what is right.

A round: the draft proposes d_1 .. d_n behind the anchor (the answer's last token, which the target has not seen yet);
the target computes the rows [anchor, d_1 .. d_n] and chooses the token behind each; the longest prefix of drafts that
equals those choices is kept, and the target's next choice is added. So every token of the answer is the target's own
choice behind tokens that are right themselves: with or without a draft, greedy or drawn, it is the same answer. Rows
behind the kept ones are never committed. Without a draft a round has one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Ids

    from torch import Tensor

    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence, Step

    type Choose = Callable[[Tensor, int], list[int]]  # scores [T, V] of the tokens at positions p.., and p -> T ids


class Round(NamedTuple):
    """What one step of the target adds to an answer."""

    tokens: list[int]  # at least one
    correct: int | None = None  # drafts that were right; None = none was verified


class Draft(Protocol):
    """A draft model that follows the target's sequence."""

    window: int  # tokens that it proposes at once

    def restart(self) -> None:
        """Forgets every token."""

    def extend(self, step: Step, following: Ids[int]) -> None:
        """The target committed the step's first rows; `following` are the tokens behind each of them."""

    def propose(self, choose: Choose) -> list[int]:
        """Guesses what comes behind the last token it was told of. Leaves no trace."""


def accept_prefix(drafts: Ids[int], choices: Ids[int]) -> int:
    """How many drafts, from the first on, are the target's choices at their places."""
    return next((i for i, draft in enumerate(drafts) if draft != choices[i]), len(drafts))


def rounds(model: Ling, sequence: Sequence, draft: Draft | None, anchor: int, choose: Choose) -> Iterator[Round]:
    """Endless: rounds behind the anchor, which follows the sequence. Each is computed when it is asked for."""
    position = sequence.length + 1  # of the token behind the anchor
    while True:
        drafts = draft.propose(choose) if draft else []
        step = model(torch.tensor([anchor, *drafts]), sequence)
        choices = choose(model.logits(step.hidden), position)
        correct = accept_prefix(drafts, choices)
        tokens = choices[: correct + 1]
        sequence.commit(step, len(tokens))
        yield Round(tokens, correct if draft else None)
        if draft:
            draft.extend(step, tokens)
        position, anchor = position + len(tokens), tokens[-1]
