"""The experts of one layer for the few rows of a decoding step, in two kernels. Triton; needs no SGLang.

A step of one request meets an expert with one row, or with some of the rows of a round of drafts: reading weights is
what takes time, and what is launched around it. So nothing is sorted: a program is of one pair of a row and its expert
and of a block of columns; of the pairs that share an expert the first row's does the work for all of them, the others
end at once. The kernel of the way down also sums: whoever comes last to a block of columns adds up what the others
left, in the order of the slots, so that results do not depend on who came when.

Rounding is SGLang's: each product to bf16, silu(gate) * up to bf16, weighted rows to bf16, their sum in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from . import early
from .plans import ROWS, SLOTS

if TYPE_CHECKING:
    from .plans import Plan


@triton.jit
def _rows_of(ids_ptr, pair, rows, SLOTS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
    """Of the pair's expert: its number, which rows meet it, their pairs, and whether this pair does the work; and how
    many pairs have an expert at all."""
    row = tl.arange(0, ROWS)
    slot = tl.arange(0, WIDE)
    inside = (row[:, None] < rows) & (slot[None, :] < SLOTS)
    ids = tl.load(ids_ptr + row[:, None] * SLOTS + slot[None, :], mask=inside, other=-1, cache_modifier=".cg")
    expert = tl.load(ids_ptr + pair, cache_modifier=".cg")
    hit = inside & (ids == expert)
    meets = tl.max(hit.to(tl.int32), axis=1) > 0
    first = tl.min(tl.where(meets, row, ROWS), axis=0)
    pairs = row * SLOTS + tl.sum(tl.where(hit, slot[None, :], 0), axis=1)
    real = tl.sum(tl.sum((ids >= 0).to(tl.int32), axis=1), axis=0)
    return expert.to(tl.int64), meets, pairs, (expert >= 0) & (first == pair // SLOTS), real


@triton.jit
def experts_up(
    x_ptr, w_ptr, ids_ptr, h_ptr, rows, limit,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, LIMITED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """h[pair, column] = silu(x gate) * (x up), in bf16."""
    blocks: tl.constexpr = COLUMNS // BLOCK
    pair = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        early.wait()
    expert, meets, pairs, mine, _ = _rows_of(ids_ptr, pair, rows, SLOTS, WIDE, ROWS)
    if mine:
        row = tl.arange(0, ROWS)
        k = tl.arange(0, STEP)
        x = x_ptr + row[:, None] * HIDDEN + k[None, :]
        gate = w_ptr + expert * (2 * COLUMNS * HIDDEN) + column[None, :] * HIDDEN + k[:, None]
        up = gate + COLUMNS * HIDDEN
        a = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        b = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for at in range(0, HIDDEN, STEP):
            value = tl.load(x + at, mask=meets[:, None], other=0.0)
            a = tl.dot(value, tl.load(gate + at), a)
            b = tl.dot(value, tl.load(up + at), b)
        kind = h_ptr.dtype.element_ty
        a = a.to(kind).to(tl.float32)
        b = b.to(kind).to(tl.float32)
        a = a / (1.0 + tl.exp(-a))
        if LIMITED:
            a = tl.minimum(a, limit)
            b = tl.minimum(tl.maximum(b, -limit), limit)
        tl.store(h_ptr + pairs[:, None] * COLUMNS + column[None, :], (a * b).to(kind), mask=meets[:, None])


@triton.jit
def experts_down(
    h_ptr, w_ptr, ids_ptr, weights_ptr, part_ptr, out_ptr, come_ptr, rows, scale,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """part[pair, d] = weight * (h down), in bf16; the last program of a block of d: out[row, d] = scale * their sum."""
    blocks: tl.constexpr = HIDDEN // BLOCK
    pair = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    column = block * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    kind = out_ptr.dtype.element_ty
    # The experts were chosen before the kernel in front of this one began: `experts_up` waited for that.
    expert, meets, pairs, mine, real = _rows_of(ids_ptr, pair, rows, SLOTS, WIDE, ROWS)
    last = (real == 0) & (pair == 0)  # of rows without experts, which have a result too
    if EARLY:
        early.wait()
    if mine:
        k = tl.arange(0, STEP)
        h = h_ptr + pairs[:, None] * COLUMNS + k[None, :]
        w = w_ptr + expert * (HIDDEN * COLUMNS) + column[None, :] * COLUMNS + k[:, None]
        total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for at in range(0, COLUMNS, STEP):
            total = tl.dot(tl.load(h + at, mask=meets[:, None], other=0.0), tl.load(w + at), total)
        weight = tl.load(weights_ptr + pairs, mask=meets, other=0.0)
        place = part_ptr + pairs[:, None] * HIDDEN + column[None, :]
        tl.store(place, (total * weight[:, None]).to(kind), mask=meets[:, None], cache_modifier=".cg")
        tl.debug_barrier()  # all of this program's parts are written before it says how many
        done = tl.sum(meets.to(tl.int32), axis=0)
        last = tl.atomic_add(come_ptr + block, done, sem="acq_rel") + done == real
    if last:
        tl.store(come_ptr + block, 0)  # for the next step
        total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for slot in range(SLOTS):
            at = row * SLOTS + slot
            chosen = (row < rows) & (tl.load(ids_ptr + at, mask=row < rows, other=-1) >= 0)
            place = part_ptr + at[:, None] * HIDDEN + column[None, :]
            total += tl.load(place, mask=chosen[:, None], other=0.0, cache_modifier=".cg").to(tl.float32)
        place = out_ptr + row[:, None] * HIDDEN + column[None, :]
        tl.store(place, (total * scale).to(kind), mask=(row < rows)[:, None])


class Experts:
    """Of one layer: `up` [experts, 2 x columns, hidden], gate first, and `down` [experts, hidden, columns].

    One step at a time on a device: programs meet at counters that belong to the layer.
    """

    def __init__(self, up: torch.Tensor, down: torch.Tensor, *, limit: float | None = None) -> None:
        self.up, self.down, self.limit = up, down, limit
        self.hidden, self.columns = down.shape[1], down.shape[2]
        # one for the narrowest block that any plan has
        self._come = torch.zeros(self.hidden // ROWS, dtype=torch.int32, device=up.device)

    def __call__(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, *, scale: float,
        plans: tuple[Plan, Plan], pdl: bool,
    ) -> torch.Tensor:  # fmt: skip
        """`x`, `out` [rows, hidden], `weights` fp32 and `ids` int32 [rows, slots], all contiguous; no row has an expert
        twice, and an id below 0 is none. `out` may be `x`. `pdl`: programs are launched before the kernel in front of
        them has ended, and wait for it; `ids` are written by the kernel in front of these two, or before it.
        Returns `out`."""
        rows, slots = ids.shape
        pairs = rows * slots
        h = torch.empty((pairs, self.columns), dtype=x.dtype, device=x.device)
        part = torch.empty((pairs, self.hidden), dtype=x.dtype, device=x.device)
        sizes = {"HIDDEN": self.hidden, "COLUMNS": self.columns, "SLOTS": slots, "WIDE": SLOTS, "ROWS": ROWS}
        up, down = plans
        experts_up[(pairs * (self.columns // up.columns),)](
            x, self.up, ids, h, rows, self.limit or 0.0,
            **sizes, LIMITED=self.limit is not None, **cut(up, pdl=pdl),
        )  # fmt: skip
        experts_down[(pairs * (self.hidden // down.columns),)](
            h, self.down, ids, weights, part, out, self._come, rows, scale, **sizes, **cut(down, pdl=pdl)
        )
        return out


def cut(plan: Plan, *, pdl: bool) -> dict[str, Any]:
    """As Triton wants it."""
    return {
        "BLOCK": plan.columns, "STEP": plan.summands, "num_warps": plan.warps, "num_stages": plan.stages,
        **early.launched(pdl),
    }  # fmt: skip
