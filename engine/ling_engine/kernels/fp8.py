"""Few rows times a matrix in fp8: half of the bytes that a draft reads. Triton; needs no SGLang.

Drafts only guess: what a rounded matrix guesses wrongly costs a draft, never a token. Weights are e4m3 with one fp32
scale a row; rows and weights are multiplied in fp16, which holds every e4m3 number, and summed in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import triton
import triton.language as tl

from . import early
from .experts import cut
from .plans import ROWS

if TYPE_CHECKING:
    from .plans import Plan

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


@triton.jit
def rounded_product(
    x_ptr, w_ptr, scale_ptr, out_ptr, rows,
    SUMMANDS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[row, column] = scale (x w), in the rows' type."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    k = tl.arange(0, STEP)
    scale = tl.load(scale_ptr + column)
    if EARLY:
        early.wait()
    x = x_ptr + row[:, None] * SUMMANDS + k[None, :]
    w = w_ptr + column[None, :].to(tl.int64) * SUMMANDS + k[:, None]
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for at in range(0, SUMMANDS, STEP):
        value = tl.load(x + at, mask=(row < rows)[:, None], other=0.0).to(tl.float16)
        total = tl.dot(value, tl.load(w + at).to(tl.float16), total)
    place = out_ptr + row[:, None].to(tl.int64) * COLUMNS + column[None, :]
    tl.store(place, (total * scale[None, :]).to(out_ptr.dtype.element_ty), mask=(row < rows)[:, None])


def product(x: torch.Tensor, small: torch.Tensor, scales: torch.Tensor, *, plan: Plan, pdl: bool) -> torch.Tensor:
    """`x` [rows, summands], ROWS at most, no value beyond fp16's 65,504; `small`, `scales` as `rounded` gives them; all
    contiguous. Returns [rows, columns] in x's type, as a product with the matrix itself would."""
    columns, summands = small.shape
    out = torch.empty((x.shape[0], columns), dtype=x.dtype, device=x.device)
    rounded_product[(columns // plan.columns,)](
        x, small, scales, out, x.shape[0], SUMMANDS=summands, COLUMNS=columns, ROWS=ROWS, **cut(plan, pdl=pdl)
    )
    return out
