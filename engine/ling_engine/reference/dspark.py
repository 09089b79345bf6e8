"""DSPARK: an external draft that guesses a block of tokens in one pass.

It reads the target's stream behind a few layers: each committed position becomes a key and a value in every draft
layer. A block is the anchor and mask tokens behind it; all its rows see the whole context and each other, both ways,
and none of it is kept. Row i scores the token i + 1 behind the anchor; a low-rank Markov head adds what the token
before it says, so the guesses come one after the other. Embedding and head are the target's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_engine.reference.layers import rotations

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    from ling_engine.reference.dspark_config import DsparkConfig
    from ling_engine.reference.dspark_model import DsparkModel
    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Step
    from ling_engine.reference.speculate import Choose


class Dspark:
    """The draft following the target's sequence."""

    def __init__(self, target: Ling, model: DsparkModel, c: DsparkConfig, window: int, context: int) -> None:
        self._target, self._model, self.window = target, model, window
        room = context + window
        self._turns = rotations(room, c.head_dim, c.rope_theta)
        shape = (2, room, c.num_key_value_heads, c.head_dim)
        self._caches = [torch.zeros(shape, dtype=getattr(torch, c.dtype)) for _ in range(c.num_hidden_layers)]
        self._masks = [c.mask_token_id] * (window - 1)
        self._length, self._anchor = 0, 0

    def restart(self) -> None:
        self._length = 0

    def extend(self, step: Step, following: Ids[int]) -> None:
        if step.taps is None:
            raise ValueError("the target was built without the taps that this draft reads")
        z = self._model.hidden_norm(self._model.fc(step.taps[: len(following)]))
        end = self._length + len(following)
        for block, cache in zip(self._model.blocks(), self._caches, strict=True):
            block.self_attn.write(z, cache[:, self._length : end], self._turns[self._length : end])
        self._length, self._anchor = end, following[-1]

    def propose(self, choose: Choose) -> list[int]:
        h = self._target.embed(torch.tensor([self._anchor, *self._masks]))
        for block, cache in zip(self._model.blocks(), self._caches, strict=True):
            h = block(h, self._length, cache, self._turns)
        scores, drafts, before = self._target.logits(self._model.norm(h)), list[int](), self._anchor
        for row in scores.unbind():
            (before,) = choose((row + self._model.markov_head(before))[None], self._length + 1 + len(drafts))
            drafts.append(before)
        return drafts
