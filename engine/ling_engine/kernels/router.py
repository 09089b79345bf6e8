"""The router's scores for the few rows of a decoding step, in one kernel. Triton; needs no SGLang.

A product of bf16 rows with fp32 weights to fp32, as exact as in fp32: a weight is cut into three bf16 numbers, which
together have all of its 24 bits, and tensor cores multiply each with the rows, which are bf16 as they are. So weights
are read once for all rows. A bf16 weight is one such number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import early
from .experts import ROWS, cut

if TYPE_CHECKING:
    from .plans import Plan


@triton.jit
def _scores(
    x_ptr, w_ptr, out_ptr, rows,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """out[row, expert] = x w, in fp32."""
    expert = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    k = tl.arange(0, STEP)
    if EARLY:
        if AHEAD:
            here = w_ptr + tl.program_id(0) * BLOCK * HIDDEN
            early.fetch(here, BLOCK * HIDDEN * (w_ptr.dtype.element_ty.primitive_bitwidth // 8))
        early.wait()
    x = x_ptr + row[:, None] * HIDDEN + k[None, :]
    w = w_ptr + expert[None, :] * HIDDEN + k[:, None]
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for at in range(0, HIDDEN, STEP):
        value = tl.load(x + at, mask=(row < rows)[:, None], other=0.0)
        left = tl.load(w + at)
        for _ in tl.static_range(PARTS):
            part = left.to(value.dtype)
            total = tl.dot(value, part, total)
            left = left - part.to(left.dtype)
    tl.store(out_ptr + row[:, None] * EXPERTS + expert[None, :], total, mask=(row < rows)[:, None])


def scores(x: torch.Tensor, weight: torch.Tensor, *, plan: Plan, pdl: bool) -> torch.Tensor:
    """`x` [rows, hidden] bf16, `weight` [experts, hidden] fp32 or of x's type, both contiguous; experts a multiple of
    `plan.columns`, hidden of `plan.summands`. Returns [rows, experts] fp32."""
    experts, hidden = weight.shape
    out = torch.empty((x.shape[0], experts), dtype=torch.float32, device=x.device)
    _scores[(experts // plan.columns,)](
        x, weight, out, x.shape[0], HIDDEN=hidden, EXPERTS=experts, ROWS=ROWS,
        PARTS=1 if weight.dtype == x.dtype else 3, **cut(plan, pdl=pdl),
    )  # fmt: skip
    return out
