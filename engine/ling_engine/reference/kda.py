"""Kimi Delta Attention: a state per head that decays along the key's channels and learns by the delta rule.

Two forms that must agree: `recurrent`, one step at a time, and `chunked`, which solves 16 steps at once (with a decay
of at least e^-5 a step, e^80 is what fp32 still holds). A layer never changes the state it is given: it returns the
next one, and whoever owns the sequence commits it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference.layers import Linear, Norm, Weight, inverse_norm, parameter

if TYPE_CHECKING:
    from ling_engine.reference.config import Config

CHUNK = 16


class KdaState(NamedTuple):
    """What a KDA layer carries from token to token."""

    conv: Tensor  # [kernel - 1, 3 · H · K]: the last inputs of the short convolution, q ‖ k ‖ v
    memory: Tensor  # [H, V, K] fp32


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v, g [H, T, K] and beta [H, T], fp32 -> outputs [H, T, V] and the memory after them."""
    decay, out = g.exp(), []
    for t in range(q.shape[1]):
        memory = memory * decay[:, t, None]
        u = beta[:, t, None, None] * (v[:, t, :, None] - memory @ k[:, t, :, None])
        memory = torch.addcmul(memory, u, k[:, t, None])
        out.append(memory @ q[:, t, :, None])
    return torch.cat(out, -1).mT, memory


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The same. Within a chunk the corrections u solve (I + L) u = β (v - k⁺ S₀ᵀ), L lower triangular."""
    steps = q.shape[1]
    size = min(CHUNK, steps)
    pad = -steps % size  # empty steps: no decay, nothing learnt
    if pad:
        q, k, v, g = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v, g))
        beta = F.pad(beta, (0, pad))
    q, k, v, g = (torch.unflatten(x, 1, (-1, size)) for x in (q, k, v, g))
    beta = torch.unflatten(beta, 1, (-1, size)).unsqueeze(-1)
    total = g.cumsum(2)
    grown, last = total.exp(), total[:, :, -1:]
    q, k_up, k_down = q * grown, k * grown, k * (-total).exp()
    lower = beta * (k_up @ k_down.mT).tril(-1)
    solved = torch.linalg.solve_triangular(
        lower, torch.cat((beta * v, beta * k_up), -1), upper=False, unitriangular=True
    )
    fresh, seen = torch.split(solved, [v.shape[-1], k.shape[-1]], -1)
    within, kept, k_left = (q @ k_down.mT).tril(), last.exp(), k * (last - total).exp()
    out = []
    for n in range(q.shape[1]):
        u = fresh[:, n] - seen[:, n] @ memory.mT
        out.append(q[:, n] @ memory.mT + within[:, n] @ u)
        memory = memory * kept[:, n] + u.mT @ k_left[:, n]
    return torch.cat(out, 1)[:, :steps], memory


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

    def forward(self, x: Tensor, state: KdaState) -> tuple[Tensor, KdaState]:
        """x [T, D] -> y [T, D] and the state after its last token."""
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
        return y, KdaState(rows[len(x) :].clone(), memory)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, self.width).transpose(0, 1)

    def _convolve(self, rows: Tensor) -> Tensor:
        """silu of each channel's causal convolution: [kernel - 1 + T, C] -> [T, C], fp32."""
        weight = torch.cat((self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight)).squeeze(1)
        return F.silu((rows.unfold(0, weight.shape[1], 1) * weight).sum(-1))
