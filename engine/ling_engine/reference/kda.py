"""Kimi Delta Attention: a state per head that decays along the key's channels and learns by the delta rule.

A layer never changes the state it is given: it returns what its step did, and whoever owns the sequence commits as many
rows of it as turn out to be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference.delta import chunked, recurrent
from ling_engine.reference.layers import Linear, Norm, Weight, inverse_norm, parameter

if TYPE_CHECKING:
    from ling_engine.reference.config import Config


class KdaState(NamedTuple):
    """What a KDA layer carries from token to token."""

    conv: Tensor  # [kernel - 1, 3 · H · K]: the last inputs of the short convolution, q ‖ k ‖ v
    memory: Tensor  # [H, V, K] fp32


class KdaStep(NamedTuple):
    """What a step of T rows did to a KDA layer: enough to replay the first of them and drop the others."""

    rows: Tensor  # [kernel - 1 + T, 3 · H · K]: inputs of the short convolution, the carried ones first
    before: Tensor  # the memory that the step began with
    after: Tensor  # the memory behind its last row
    updates: tuple[Tensor, Tensor, Tensor, Tensor]  # k, v, g [H, T, K] and beta [H, T] of the delta rule

    def state(self, kept: int) -> KdaState:
        """The state behind the first `kept` rows, at least one."""
        steps = self.updates[0].shape[1]
        memory = self.after
        if kept < steps:
            k, v, g, beta = (update[:, :kept] for update in self.updates)
            _, memory = chunked(k, k, v, g, beta, self.before)  # any query will do: nobody reads the outputs
        return KdaState(self.rows[kept : len(self.rows) - steps + kept].clone(), memory)


class Kda(nn.Module):
    """One KDA layer with the checkpoint's tensor names."""

    def __init__(self, c: Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.width, self.bound = c.num_attention_heads, c.head_dim, c.kda_lower_bound
        size, fp32 = self.heads * self.width, torch.float32
        self.q_proj, self.k_proj, self.v_proj, self.f_proj, self.g_proj = (
            Linear(size, c.hidden_size, dtype=dtype) for _ in "qkvfg"
        )
        self.b_proj = Linear(self.heads, c.hidden_size, dtype=dtype)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            Weight(size, 1, c.short_conv_kernel_size, dtype=fp32) for _ in "qkv"
        )
        self.A_log, self.dt_bias = parameter(self.heads, dtype=fp32), parameter(size, dtype=fp32)
        self.o_norm = Norm(self.width, 1e-6, dtype)  # the model code fixes this eps
        self.o_proj = Linear(c.hidden_size, size, dtype=dtype)

    def forward(self, x: Tensor, state: KdaState) -> tuple[Tensor, KdaStep]:
        """x [T, D] -> y [T, D] and what these rows do to the state."""
        rows = torch.cat((state.conv, torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), -1)))
        mixed = self._convolve(rows).view(len(x), 3, self.heads, self.width).permute(1, 2, 0, 3)
        v = mixed[2]
        q, k = mixed[:2] * inverse_norm(mixed[:2], 1, self.o_norm.eps)
        q = q * self.width**-0.5
        rate = self.A_log.exp()[:, None, None]
        g = self.bound * torch.sigmoid(rate * self._heads(self.f_proj(x).float() + self.dt_bias))
        beta = self.b_proj(x).float().sigmoid().T
        form = recurrent if len(x) == 1 else chunked
        out, memory = form(q, k, v, g, beta, state.memory)
        y = self.o_norm(out) * self._heads(self.g_proj(x).float()).sigmoid()
        y = self.o_proj(y.transpose(0, 1).flatten(1).to(x.dtype))
        return y, KdaStep(rows, state.memory, memory, (k, v, g, beta))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, self.width).transpose(0, 1)

    def _convolve(self, rows: Tensor) -> Tensor:
        """silu of each channel's causal convolution: [kernel - 1 + T, C] -> [T, C], fp32."""
        weight = torch.cat((self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight)).squeeze(1)
        return F.silu((rows.unfold(0, weight.shape[1], 1) * weight).sum(-1))
