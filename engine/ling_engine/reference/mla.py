"""Multi-head latent attention: what is cached of a token is one latent c and one rotary key r, shared by all heads.

Two forms that must agree: `plain` expands the cached latents into keys and values (prefill), `absorbed` moves the
expansion into query and output (decode). Rows are written behind the cached ones; they count only once the owner of
the sequence commits its new length, so a step that is not committed leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ling_engine.reference.layers import Linear, Norm, rotate

if TYPE_CHECKING:
    from ling_engine.reference.config import Config

ABSORB_UP_TO = 8  # rows of a step; more of them pay for expanding the cache


class Mla(nn.Module):
    """One MLA layer with the checkpoint's tensor names."""

    def __init__(self, c: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.nope, self.rope = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim
        self.value, self.rank = c.v_head_dim, c.kv_lora_rank
        self.scale = (self.nope + self.rope) ** -0.5
        self.q_proj = Linear(self.heads * (self.nope + self.rope), c.hidden_size, dtype=dtype)
        self.kv_a_proj_with_mqa = Linear(self.rank + self.rope, c.hidden_size, dtype=dtype)
        self.kv_a_layernorm = Norm(self.rank, c.rms_norm_eps, dtype)
        self.kv_b_proj = Linear(self.heads * (self.nope + self.value), self.rank, dtype=dtype)
        gates = self.heads * (1 if c.gate_per_head else self.value)
        self.g_proj = Linear(gates, c.hidden_size, dtype=dtype)
        self.dense = Linear(c.hidden_size, self.heads * self.value, dtype=dtype)

    def forward(self, x: Tensor, start: int, cache: Tensor, rotations: Tensor) -> Tensor:
        """x [T, D] at positions start..; cache [context, rank + rope], rotations [context, rope / 2] -> [T, D]."""
        end = start + len(x)
        turn = rotations[start:end]
        q_nope, q_rope = torch.split(self.q_proj(x).view(len(x), self.heads, -1), [self.nope, self.rope], -1)
        latent, key = torch.split(self.kv_a_proj_with_mqa(x), [self.rank, self.rope], -1)
        cache[start:end, : self.rank] = self.kv_a_layernorm(latent)
        cache[start:end, self.rank :] = rotate(key[:, None], turn)[:, 0]
        form = self.absorbed if len(x) <= ABSORB_UP_TO else self.plain
        out = form(q_nope, rotate(q_rope, turn), cache[:end], start)
        gate = self.g_proj(x).float().sigmoid().view(len(x), self.heads, -1)
        y: Tensor = self.dense((out * gate).flatten(1).to(x.dtype))
        return y

    def plain(self, q_nope: Tensor, q_rope: Tensor, cache: Tensor, start: int) -> Tensor:
        """Queries [T, H, nope] and [T, H, rope] against cache [start + T, rank + rope] -> [T, H, value]."""
        latent, key = torch.split(cache, [self.rank, self.rope], -1)
        expanded = self.kv_b_proj(latent).view(len(cache), self.heads, -1)
        k_nope, v = torch.split(expanded, [self.nope, self.value], -1)
        scores = torch.einsum("thd,shd->hts", q_nope, k_nope) + torch.einsum("thd,sd->hts", q_rope, key)
        weights = self._attend(scores, start)
        return torch.einsum("hts,shd->thd", weights.to(v.dtype), v)

    def absorbed(self, q_nope: Tensor, q_rope: Tensor, cache: Tensor, start: int) -> Tensor:
        """The same without expanding the cache."""
        expand = self.kv_b_proj.weight.view(self.heads, self.nope + self.value, self.rank)
        q_latent = q_nope.transpose(0, 1) @ expand[:, : self.nope]  # [H, T, rank]
        scores = torch.cat((q_latent, q_rope.transpose(0, 1)), -1) @ cache.T
        weights = self._attend(scores, start)
        out = weights.to(cache.dtype) @ cache[:, : self.rank]  # [H, T, rank]
        return (out @ expand[:, self.nope :].mT).transpose(0, 1)

    def _attend(self, scores: Tensor, start: int) -> Tensor:
        """Causal softmax in fp32: row t of scores [H, T, S] sees positions up to start + t."""
        scores = scores.float() * self.scale
        if scores.shape[1] > 1:
            future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(start + 1)
            scores = scores.masked_fill(future, -torch.inf)
        return scores.softmax(-1)
