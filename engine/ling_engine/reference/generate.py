"""Generation of one answer: the prompt in pieces, then round by round, up to its limit or its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from ling_engine.reference.sampling import choose
from ling_engine.reference.speculate import Round, rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Ids

    from ling_engine.reference.bounds import Bounds
    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence
    from ling_engine.reference.speculate import Choose, Draft

PREFILL_ROWS = 64  # a longer prompt goes in pieces of this size: bounded activations, and places to stop


class Decoder:
    """The target, its one sequence, and the draft that guesses ahead, if any."""

    def __init__(self, model: Ling, sequence: Sequence, draft: Draft | None = None) -> None:
        self._model, self._sequence, self._draft = model, sequence, draft

    @property
    def window(self) -> int:
        """Tokens that the draft proposes a round; 0 = there is none."""
        return self._draft.window if self._draft else 0

    def generate(self, prompt: Ids[int], bounds: Bounds, wanted: Callable[[], bool]) -> Iterator[Round]:
        """Rounds of the tokens behind the prompt (at least one id), until `wanted()` is false before one.

        The first has one token and comes with the prompt. Prompt and limit together must fit the sequence's context.
        """
        left = bounds.limit
        for found in self._rounds(prompt, partial(choose, sampling=bounds.sampling), wanted):
            tokens = found.tokens[:left]
            if bounds.eos in tokens:
                tokens = tokens[: tokens.index(bounds.eos) + 1]
            yield found._replace(tokens=tokens)
            left -= len(tokens)
            if not left or tokens[-1] == bounds.eos:
                return

    def _rounds(self, prompt: Ids[int], choose: Choose, wanted: Callable[[], bool]) -> Iterator[Round]:
        model, sequence, draft = self._model, self._sequence, self._draft
        sequence.restart()
        if draft:
            draft.restart()
        first: list[int] = []
        for at in range(0, len(prompt), PREFILL_ROWS):
            if not wanted():
                return
            piece = prompt[at : at + PREFILL_ROWS]
            step = model(torch.tensor(piece), sequence)
            sequence.commit(step, len(piece))
            if at + len(piece) == len(prompt):
                first = choose(model.logits(step.hidden[-1:]), len(prompt))
                yield Round(first)
            if draft:
                draft.extend(step, [*prompt[at + 1 : at + 1 + len(piece)], *first])
        following = rounds(model, sequence, draft, first[0], choose)
        while wanted():
            yield next(following)
