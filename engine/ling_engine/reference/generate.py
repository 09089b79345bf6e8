"""Greedy generation of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Ids

    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence

PREFILL_ROWS = 64  # a longer prompt goes in pieces of this size: bounded activations, and places to stop


def greedy(
    model: Ling, sequence: Sequence, prompt: Ids[int], limit: int, eos: int | None, wanted: Callable[[], bool]
) -> Iterator[int]:
    """The ids that follow the prompt (at least one id): `limit` of them, or up to `eos`, or until `wanted()` is false.

    Restarts the sequence; prompt and `limit` together must fit its context.
    """
    sequence.restart()
    pieces = [prompt[at : at + PREFILL_ROWS] for at in range(0, len(prompt), PREFILL_ROWS)]
    for _ in range(limit):
        for piece in pieces:
            if not wanted():
                return
            step = model(torch.tensor(piece), sequence)
            sequence.commit(step)
        token = int(model.logits(step.hidden[-1:]).argmax())
        yield token
        if token == eos:
            return
        pieces = [[token]]
