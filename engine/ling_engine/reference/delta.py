"""The delta rule with a decay along the key's channels, in two forms that must agree.

`recurrent` goes one step at a time; `chunked` solves 16 steps at once (with a decay of at least e^-5 a step, e^80 is
what fp32 still holds). Neither changes the memory that it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 16


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
