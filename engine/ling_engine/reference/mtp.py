"""NEXTN: the checkpoint's own multi-token-prediction layer as a draft.

Entry p of its cache holds the token at p + 1 and the target's hidden row at p, at rotary position p: ids are shifted by
one against the rows, positions are not. Its first guess reads the target's hidden row, each further one its own.
Embedding and head are the target's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ling_engine.reference.layers import Linear, Norm
from ling_engine.reference.model import Block
from ling_engine.reference.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    from ling_engine.reference.config import Config
    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Step
    from ling_engine.reference.speculate import Choose


def layer_config(c: Config) -> Config:
    """The draft as a model of one layer: MLA and experts, whatever the target's layers are.

    Its clamps are those of the target's layer 0, as in SGLang, which builds it under that number.
    """
    return replace(
        c,
        num_hidden_layers=1,
        first_k_dense_replace=0,
        kda=(False,),
        expert_limits=c.expert_limits[:1],
        shared_limits=c.shared_limits[:1],
    )


class Mtp(Block):
    """The layer with the checkpoint's tensor names (those behind `model.layers.N.`)."""

    def __init__(self, c: Config) -> None:
        dtype = getattr(torch, c.dtype)
        super().__init__(layer_config(c), 0, dtype)
        self.enorm, self.hnorm, self.final_layernorm = (Norm(c.hidden_size, c.rms_norm_eps, dtype) for _ in range(3))
        self.eh_proj = Linear(c.hidden_size, 2 * c.hidden_size, dtype=dtype)

    def predict(self, embedded: Tensor, hidden: Tensor, sequence: Sequence) -> Tensor:
        """Embedded tokens [T, D] and the hidden rows before them [T, D] -> hidden rows [T, D] for the head."""
        joined = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))
        h, _ = self(joined, sequence)
        y: Tensor = self.final_layernorm(h)
        return y


class Nextn:
    """The layer following the target's sequence: a chain of best guesses."""

    def __init__(self, target: Ling, layer: Mtp, c: Config, steps: int, context: int) -> None:
        self._target, self._layer, self.window = target, layer, steps
        self._sequence = Sequence.allocate(layer_config(c), context + steps)
        self._last = torch.empty(0)  # [1, D]: what predicts the token behind the last one

    def restart(self) -> None:
        self._sequence.restart()

    def extend(self, step: Step, following: Ids[int]) -> None:
        rows = len(following)
        self._last = self._step(following, step.hidden[:rows])[-1:]
        self._sequence.length += rows

    def propose(self, choose: Choose) -> list[int]:
        committed, hidden, drafts = self._sequence.length, self._last, list[int]()
        try:
            while True:
                drafts += choose(self._target.logits(hidden), committed + 1 + len(drafts))
                if len(drafts) == self.window:
                    return drafts
                hidden = self._step(drafts[-1:], hidden)
                self._sequence.length += 1
        finally:
            self._sequence.length = committed

    def _step(self, ids: Ids[int], hidden: Tensor) -> Tensor:
        return self._layer.predict(self._target.embed(torch.tensor(ids)), hidden, self._sequence)
