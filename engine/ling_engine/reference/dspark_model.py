"""The layers of a DSPARK draft, with its checkpoint's tensor names; `dspark` says how they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference.layers import Linear, Norm, Weight, rotate_halves
from ling_engine.reference.moe import Glu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_engine.reference.dspark_config import DsparkConfig


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys."""

    def __init__(self, c: DsparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.shared, self.width = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = Linear(self.heads * self.width, c.hidden_size, dtype=dtype)
        self.k_proj, self.v_proj = (Linear(self.shared * self.width, c.hidden_size, dtype=dtype) for _ in "kv")
        self.o_proj = Linear(c.hidden_size, self.heads * self.width, dtype=dtype)
        self.q_norm, self.k_norm = (Norm(self.width, c.rms_norm_eps, dtype) for _ in "qk")

    def write(self, x: Tensor, cache: Tensor, turns: Tensor) -> None:
        """Keys and values of rows x [T, D] into cache [2, T, kv heads, width]."""
        cache[0] = rotate_halves(self.k_norm(self.k_proj(x).view(len(x), self.shared, -1)), turns)
        cache[1] = self.v_proj(x).view(len(x), self.shared, -1)

    def forward(self, x: Tensor, cache: Tensor, turns: Tensor) -> Tensor:
        """Rows x [T, D] see all of cache [2, S, kv heads, width]; `turns` are theirs -> [T, D]."""
        q = rotate_halves(self.q_norm(self.q_proj(x).view(len(x), self.heads, -1)), turns)
        k, v = cache.repeat_interleave(self.heads // self.shared, 2).permute(0, 2, 1, 3)
        weights = (q.transpose(0, 1) @ k.mT).float().mul(self.width**-0.5).softmax(-1)
        y: Tensor = self.o_proj((weights.to(v.dtype) @ v).transpose(0, 1).flatten(1))
        return y


class DsparkBlock(nn.Module):
    """One layer: attention and feed-forward, each behind a norm and added to the stream."""

    def __init__(self, c: DsparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(c.hidden_size, c.rms_norm_eps, dtype) for _ in range(2)
        )
        self.self_attn = Attention(c, dtype)
        self.mlp = Glu(c.hidden_size, c.intermediate_size, None, dtype)

    def forward(self, h: Tensor, start: int, cache: Tensor, turns: Tensor) -> Tensor:
        """h [T, D] at positions start..; writes its keys and values there."""
        x, end = self.input_layernorm(h), start + len(h)
        self.self_attn.write(x, cache[:, start:end], turns[start:end])
        h = h + self.self_attn(x, cache[:, :end], turns[start:end])
        y: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return y


class MarkovHead(nn.Module):
    """scores += w2 · w1[token before]."""

    def __init__(self, c: DsparkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = (Weight(c.vocab_size, c.markov_rank, dtype=dtype) for _ in range(2))

    def forward(self, before: int) -> Tensor:
        """[vocabulary]."""
        return F.linear(self.markov_w1.weight[before], self.markov_w2.weight)


class DsparkModel(nn.Module):
    """The draft with its checkpoint's tensor names."""

    def __init__(self, c: DsparkConfig) -> None:
        super().__init__()
        dtype = getattr(torch, c.dtype)
        self.fc = Linear(c.hidden_size, len(c.target_layer_ids) * c.hidden_size, dtype=dtype)
        self.hidden_norm, self.norm = (Norm(c.hidden_size, c.rms_norm_eps, dtype) for _ in range(2))
        self.layers = nn.ModuleList(DsparkBlock(c, dtype) for _ in range(c.num_hidden_layers))
        self.markov_head = MarkovHead(c, dtype)

    def blocks(self) -> Iterator[DsparkBlock]:
        """The layers in order."""
        for layer in self.layers:
            yield cast("DsparkBlock", layer)
