"""Few rows times a matrix, in bf16 or in fp8: a decoding step's products. Triton; needs no SGLang.

What takes time is reading the matrix, and what surrounds that: a product of a step reads a few dozen MB, and its first
and last microseconds count. So a plan says how many programs there are, that all of them may run at once: each goes
through its blocks of columns as one stream of weights, or several share a block, each with some of the summands, and
whoever comes last adds up what they left, in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import triton
import triton.language as tl

from . import early
from .plans import ROWS

if TYPE_CHECKING:
    from .plans import Plan

_MOST: Final = tl.constexpr(65280.0)  # that both bf16 and fp16 hold


@triton.jit
def gathered(
    total, part_ptr, come_ptr, tile, inside, part, SIZE: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """The sum of the tiles of PARTS programs, and whether this one came last, who alone has it. `part` [PARTS, SIZE]
    fp32; the counter is 0 before and afterwards."""
    tl.store(part_ptr + part * SIZE + tile, total, mask=inside, cache_modifier=".cg")
    tl.debug_barrier()  # all of this program's numbers are written before it says so
    last = tl.atomic_add(come_ptr, 1, sem="acq_rel") == PARTS - 1
    if last:
        tl.store(come_ptr, 0)  # for the next step
        total = tl.zeros_like(total)
        for one in tl.static_range(PARTS):
            total += tl.load(part_ptr + one * SIZE + tile, mask=inside, other=0.0, cache_modifier=".cg")
    return total, last


@triton.jit
def _multiplied(
    x_ptr, w_ptr, rows, column, first,
    SUMMANDS: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    ROUNDED: tl.constexpr,
):  # fmt: skip
    """x w of a block of columns and DEPTH summands from the `first` on, in fp32."""
    row = tl.arange(0, ROWS)
    k = tl.arange(0, STEP)
    x = x_ptr + row[:, None] * SUMMANDS + first + k[None, :]
    w = w_ptr + column[None, :].to(tl.int64) * SUMMANDS + first + k[:, None]
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        value = tl.load(x + at, mask=(row < rows)[:, None], other=0.0)
        weight = tl.load(w + at)
        if ROUNDED:  # a row's outlier must not become an infinity, and a whole cache's
            value = tl.minimum(tl.maximum(value, -_MOST), _MOST).to(tl.float16)
            weight = weight.to(tl.float16)
        total = tl.dot(value, weight, total)
    return total


@triton.jit
def product_of_few_rows(
    x_ptr, w_ptr, scale_ptr, out_ptr, part_ptr, come_ptr, rows,
    SUMMANDS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    PARTS: tl.constexpr, ROUNDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[row, column] = scale (x w), in the rows' type. With PARTS there is a program for each part of each block."""
    row = tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    start = tl.program_id(0) // PARTS
    depth: tl.constexpr = SUMMANDS // PARTS
    if EARLY:
        early.wait()
    if PARTS > 1:
        part = tl.program_id(0) % PARTS
        column = start * BLOCK + tl.arange(0, BLOCK)
        tile = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
        total = _multiplied(x_ptr, w_ptr, rows, column, part * depth, SUMMANDS, depth, ROWS, BLOCK, STEP, ROUNDED)
        total, last = gathered(total, part_ptr, come_ptr + start, tile, inside, part, ROWS * COLUMNS, PARTS)
        if ROUNDED:
            total *= tl.load(scale_ptr + column)[None, :]
        tl.store(out_ptr + tile, total.to(out_ptr.dtype.element_ty), mask=inside & last)
    else:
        for block in tl.range(start, COLUMNS // BLOCK, tl.num_programs(0), flatten=True):
            column = block * BLOCK + tl.arange(0, BLOCK)
            total = _multiplied(x_ptr, w_ptr, rows, column, 0, SUMMANDS, SUMMANDS, ROWS, BLOCK, STEP, ROUNDED)
            if ROUNDED:
                total *= tl.load(scale_ptr + column)[None, :]
            tile = row[:, None].to(tl.int64) * COLUMNS + column[None, :]
            tl.store(out_ptr + tile, total.to(out_ptr.dtype.element_ty), mask=inside)


class Matrix:
    """[columns, summands], bf16, or e4m3 with `scales` [columns] fp32, which are multiplied in fp16.

    One product at a time on a device: programs meet at counters that belong to the matrix.
    """

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> None:
        self.weight, self._scales = weight, scales
        self._come = torch.zeros(len(weight) // ROWS, dtype=torch.int32, device=weight.device)

    def product(self, x: torch.Tensor, *, plan: Plan, pdl: bool) -> torch.Tensor:
        """`x` [rows, summands], ROWS at most, contiguous; with scales a value beyond 65,280 counts as that. Returns
        [rows, columns] in x's type."""
        columns, summands = self.weight.shape
        rows, blocks = x.shape[0], columns // plan.columns
        out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
        part = torch.empty((plan.parts, ROWS, columns), device=x.device) if plan.parts > 1 else None
        programs = blocks * plan.parts if plan.parts > 1 else min(blocks, plan.programs or blocks)
        product_of_few_rows[(programs,)](
            x, self.weight, self._scales, out, part, self._come, rows, SUMMANDS=summands, COLUMNS=columns, ROWS=ROWS,
            PARTS=plan.parts, ROUNDED=self._scales is not None, **cut(plan, pdl=pdl),
        )  # fmt: skip
        return out


def cut(plan: Plan, *, pdl: bool) -> dict[str, Any]:
    """As Triton wants it."""
    return {
        "BLOCK": plan.columns, "STEP": plan.summands, "num_warps": plan.warps, "num_stages": plan.stages,
        **early.launched(pdl),
    }  # fmt: skip
