"""What every layer is made of: projections, norms, rotary pairs. Parameters start on `meta`, without storage.

A module holds parameters only; whatever is derived from them is made anew in each step, because the parameters are
bound to their addresses after construction and may lie in read-only memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # its usual name


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A parameter without storage."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


class Weight(nn.Module):
    """One tensor under the name `<module>.weight`."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(*shape, dtype=dtype)


class Linear(Weight):
    """y = x Wᵀ, W [out, in]; no bias anywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Norm(Weight):
    """RMS norm over the last dimension, computed in fp32."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__(width, dtype=dtype)
        self.eps = torch.tensor(eps)  # private, and never on meta

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        y: Tensor = wide * inverse_norm(wide, self.weight.shape[0], self.eps) * self.weight
        return y.to(x.dtype)


def inverse_norm(x: Tensor, over: int, eps: Tensor) -> Tensor:
    """1 / √(Σ x² / over + eps) along the last dimension, which stays as 1. (torch's own norm takes longer on a CPU.)"""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, length, length, value=1 / over).rsqrt_()


def rotations(length: int, width: int, theta: float) -> Tensor:
    """[length, width / 2] complex: the rotation of pair j at each position is e^(i · pos · theta^(-2j / width))."""
    frequency = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """Rotates the pairs (x0, x1), (x2, x3).. of x [T, heads, width] by `by` [T, width / 2] complex."""
    pairs = torch.view_as_complex(torch.unflatten(x.float(), -1, (-1, 2)))
    return torch.view_as_real(pairs * by[:, None]).flatten(-2).to(x.dtype)


def rotate_halves(x: Tensor, by: Tensor) -> Tensor:
    """The same with pairs (x0, x_half), (x1, x_half+1)..: the other of the two customs."""
    pairs = torch.complex(*x.float().chunk(2, -1)) * by[:, None]
    return torch.cat((pairs.real, pairs.imag), -1).to(x.dtype)
