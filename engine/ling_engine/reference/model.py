"""The whole model. `forward` computes the rows of a step and commits nothing.

It writes only cache rows behind the sequence's end, so a step that is not committed (a verify whose drafts are refused)
is simply dropped. `Sequence.commit` makes it part of the sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference.kda import Kda, KdaStep
from ling_engine.reference.layers import Linear, Norm, Weight
from ling_engine.reference.mla import Mla
from ling_engine.reference.moe import Glu, Moe
from ling_engine.reference.sequence import Sequence, Step

if TYPE_CHECKING:
    from ling_engine.reference.config import Config


class Block(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, c: Config, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps, dtype)
        self.attention: Kda | Mla = Kda(c, dtype) if c.kda[layer] else Mla(c, dtype)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps, dtype)
        dense = layer < c.first_k_dense_replace
        self.mlp: Glu | Moe = Glu(c.hidden_size, c.intermediate_size, None, dtype) if dense else Moe(c, layer, dtype)
        self.layer = layer

    def forward(self, h: Tensor, sequence: Sequence) -> tuple[Tensor, KdaStep | None]:
        """h [T, D] -> the same with this layer added, and what a KDA layer did to its state."""
        x, done = self.input_layernorm(h), None
        if isinstance(self.attention, Kda):
            y, done = self.attention(x, sequence.kda[self.layer])
        else:
            y = self.attention(x, sequence.length, sequence.caches[self.layer], sequence.turns)
        h = h + y
        return h + self.mlp(self.post_attention_layernorm(h)), done


class Trunk(nn.Module):
    """Everything below the head; the checkpoint calls it `model`."""

    def __init__(self, c: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.word_embeddings = Weight(c.vocab_size, c.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(Block(c, layer, dtype) for layer in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps, dtype)


class Ling(nn.Module):
    """The target model with the checkpoint's tensor names. `taps`: layers whose output a draft model reads."""

    def __init__(self, c: Config, taps: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.taps = taps
        dtype = getattr(torch, c.dtype)
        self.model = Trunk(c, dtype)
        self.lm_head = Linear(c.vocab_size, c.hidden_size, dtype=dtype)

    def forward(self, ids: Tensor, sequence: Sequence) -> Step:
        """ids [T] that follow the sequence -> the step that would extend it."""
        h = self.embed(ids)
        done: dict[int, KdaStep] = {}
        tapped: dict[int, Tensor] = {}
        for i, block in enumerate(self.model.layers):
            h, step = block(h, sequence)
            if step is not None:
                done[i] = step
            if i in self.taps:
                tapped[i] = h
        taps = torch.cat([tapped[i] for i in self.taps], -1) if self.taps else None
        return Step(self.model.norm(h), done, taps)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, D]."""
        return F.embedding(ids, self.model.word_embeddings.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [T, D] -> [T, vocabulary]."""
        scores: Tensor = self.lm_head(hidden)
        return scores
