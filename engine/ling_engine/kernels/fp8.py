"""Matrices in fp8: half of the bytes that a draft reads.

Drafts only guess: what a rounded matrix guesses wrongly costs a draft, never a token. Weights are e4m3 with one fp32
scale a row; rows and weights are multiplied in fp16, which holds every e4m3 number, and summed in fp32
(`products.py`).
"""

from __future__ import annotations

from typing import Final

import torch

LARGEST: Final = 448.0  # of e4m3
_AT_ONCE: Final = 1024  # rows that are rounded at once: more would want much memory for a moment


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a matrix [columns, summands]: e4m3 of the same shape, and scales [columns] fp32."""
    small = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for at in range(0, weight.shape[0], _AT_ONCE):
        piece = weight[at : at + _AT_ONCE].float()
        scale = piece.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        scales[at : at + _AT_ONCE] = scale
        small[at : at + _AT_ONCE] = (piece / scale[:, None]).to(small.dtype)
    return small, scales
