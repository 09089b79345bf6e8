"""The experts of one layer for the few rows of a decoding step, in two kernels. Triton; needs no SGLang.

A step of one request meets an expert with one row, or with some of the rows of a round of drafts: reading weights is
what takes time, and what is launched around it. So nothing is sorted. On the way up a program is of one pair of a row
and its expert and of a block of columns; of the pairs that share an expert the first row's does the work for all of
them, the others end at once. It also lists the experts that the step met, by number. On the way down a program has a
block of columns, goes through (a part of) that list as one stream of weights, and sums in registers; of several that
share a block, whoever comes last adds up, in their order. So results do not depend on who came when.

Rounding is SGLang's: each product to bf16, silu(gate) * up to bf16, weighted rows to bf16, their sum in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import early
from .plans import ROWS, SLOTS
from .products import cut, gathered

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
def _list(
    ids_ptr, met_ptr, expert, meets, pairs, rows,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """Puts an expert in its place among those of the step. `met`: numbers of experts [PAIRS], of each the pairs by row
    [PAIRS, ROWS] with -1 for none, and how many experts there are."""
    at = tl.arange(0, PAIRS)
    ids = tl.load(ids_ptr + at, mask=at < rows * SLOTS, other=-1, cache_modifier=".cg")
    number = tl.arange(0, EXPERTS) - 1
    there = (tl.histogram(ids + 1, EXPERTS) > 0) & (number >= 0)
    place = tl.sum((there & (number < expert)).to(tl.int32), axis=0)
    tl.store(met_ptr + place, expert.to(tl.int32))
    tl.store(met_ptr + PAIRS + place * ROWS + tl.arange(0, ROWS), tl.where(meets, pairs, -1))
    tl.store(met_ptr + PAIRS * (1 + ROWS), tl.sum(there.to(tl.int32), axis=0))


@triton.jit
def experts_up(
    x_ptr, w_ptr, ids_ptr, h_ptr, met_ptr, rows, limit,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, LIMITED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """h[pair, column] = silu(x gate) * (x up), in bf16; and `met`, as `_list` says."""
    blocks: tl.constexpr = COLUMNS // BLOCK
    pair = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    column = block * BLOCK + tl.arange(0, BLOCK)
    if EARLY:
        early.wait()
    expert, meets, pairs, mine, real = _rows_of(ids_ptr, pair, rows, SLOTS, WIDE, ROWS)
    if (real == 0) & (tl.program_id(0) == 0):
        tl.store(met_ptr + ROWS * WIDE * (1 + ROWS), 0)
    if mine:
        if block == 0:
            _list(ids_ptr, met_ptr, expert, meets, pairs, rows, SLOTS, ROWS, ROWS * WIDE, EXPERTS)
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
    h_ptr, w_ptr, met_ptr, weights_ptr, part_ptr, out_ptr, come_ptr, rows, scale,
    HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[row, d] = scale * the sum of weight * (h down), each in bf16, over the experts that the row meets."""
    block = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    column = block * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    k = tl.arange(0, STEP)
    kind = out_ptr.dtype.element_ty
    if EARLY:
        early.wait()
    count = tl.load(met_ptr + PAIRS * (1 + ROWS))
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for place in tl.range(count * part // PARTS, count * (part + 1) // PARTS, flatten=True):
        expert = tl.load(met_ptr + place).to(tl.int64)
        pairs = tl.load(met_ptr + PAIRS + place * ROWS + row)
        meets = pairs >= 0
        weight = tl.load(weights_ptr + pairs, mask=meets, other=0.0)
        w = w_ptr + expert * (HIDDEN * COLUMNS) + column[None, :] * COLUMNS + k[:, None]
        one = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for at in range(0, COLUMNS, STEP):
            h = tl.load(h_ptr + pairs[:, None] * COLUMNS + at + k[None, :], mask=meets[:, None], other=0.0)
            one = tl.dot(h, tl.load(w + at), one)
        total += (one * weight[:, None]).to(kind).to(tl.float32)
    tile = row[:, None] * HIDDEN + column[None, :]
    inside = (row < rows)[:, None]
    if PARTS > 1:
        total, last = gathered(total, part_ptr, come_ptr + block, tile, inside, part, ROWS * HIDDEN, PARTS)
        inside = inside & last
    tl.store(out_ptr + tile, (total * scale).to(kind), mask=inside)


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
        them has ended, and wait for it. Returns `out`."""
        rows, slots = ids.shape
        pairs, device = rows * slots, x.device
        up, down = plans
        h = torch.empty((pairs, self.columns), dtype=x.dtype, device=device)
        met = torch.empty(ROWS * SLOTS * (1 + ROWS) + 1, dtype=torch.int32, device=device)
        part = torch.empty((down.parts, ROWS, self.hidden), device=device) if down.parts > 1 else None
        sizes = {"HIDDEN": self.hidden, "COLUMNS": self.columns, "ROWS": ROWS}
        experts_up[(pairs * (self.columns // up.columns),)](
            x, self.up, ids, h, met, rows, self.limit or 0.0, SLOTS=slots, WIDE=SLOTS,
            EXPERTS=triton.next_power_of_2(len(self.up) + 1), LIMITED=self.limit is not None,
            **sizes, **cut(up, pdl=pdl),
        )  # fmt: skip
        experts_down[(self.hidden // down.columns * down.parts,)](
            h, self.down, met, weights, part, out, self._come, rows, scale, PAIRS=ROWS * SLOTS, PARTS=down.parts,
            **sizes, **cut(down, pdl=pdl),
        )  # fmt: skip
        return out
