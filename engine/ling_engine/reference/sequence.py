"""What one sequence carries through the model: KDA states and MLA caches, and the step that would extend them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ling_engine.reference.kda import KdaState, KdaStep
from ling_engine.reference.layers import rotations

if TYPE_CHECKING:
    from ling_engine.reference.config import Config


class Step(NamedTuple):
    """What the model computed for T rows."""

    hidden: Tensor  # [T, D] after the last norm
    kda: dict[int, KdaStep]  # by layer
    taps: Tensor | None = None  # [T, D · taps]: the stream behind each tapped layer, side by side; None = no taps


@dataclass(slots=True)
class Sequence:
    """The tokens committed so far. Cache rows behind `length` hold leftovers of dropped steps and mean nothing."""

    kda: dict[int, KdaState]  # by layer
    caches: dict[int, Tensor]  # by layer: [context, kv_lora_rank + qk_rope_head_dim]
    turns: Tensor  # [context, qk_rope_head_dim / 2] complex
    empty: dict[int, KdaState]
    length: int = 0

    @classmethod
    def allocate(cls, c: Config, context: int) -> Sequence:
        """All that a context of `context` tokens needs, once; `restart` readies it for the next prompt."""
        dtype, heads, width = getattr(torch, c.dtype), c.num_attention_heads, c.head_dim
        empty = {
            layer: KdaState(
                torch.zeros(c.short_conv_kernel_size - 1, 3 * heads * width, dtype=dtype),
                torch.zeros(heads, width, width),
            )
            for layer in range(c.num_hidden_layers)
            if c.kda[layer]
        }
        caches = {
            layer: torch.zeros(context, c.kv_lora_rank + c.qk_rope_head_dim, dtype=dtype)
            for layer in range(c.num_hidden_layers)
            if not c.kda[layer]
        }
        turns = rotations(context, c.qk_rope_head_dim, c.rope_theta)
        return cls(kda=empty, caches=caches, turns=turns, empty=empty)

    @property
    def context(self) -> int:
        """How many tokens fit."""
        return len(self.turns)

    def restart(self) -> None:
        """Forgets every token."""
        self.length, self.kda = 0, self.empty

    def commit(self, step: Step, rows: int) -> None:
        """Makes the first `rows` rows of the step, at least one, part of the sequence; the others never were."""
        self.length += rows
        self.kda = {layer: done.state(rows) for layer, done in step.kda.items()}
