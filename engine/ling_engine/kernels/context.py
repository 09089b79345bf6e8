"""What a draft keeps of the target's rows: keys, normed and rotated, and values, into the caches of all its layers.

SGLang's kernel does the heads of a row and a layer one after the other. Here each has a program. Triton; needs no
SGLang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch


@triton.jit
def context_write(
    kv_ptr, caches_ptr, norm_ptr, turn_ptr, positions_ptr, places_ptr, confirmed_ptr, width, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, LAYERS: tl.constexpr, COUNTED: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """One head of one row and one layer. `caches` [layers, 4]: addresses of keys and values, and their strides of a
    place in numbers."""
    row, layer, head = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    place = tl.load(places_ptr + row)
    wanted = place >= 0
    if COUNTED:
        wanted = wanted & (row % width < tl.load(confirmed_ptr + row // width))
    if wanted:
        k = tl.arange(0, WIDTH)
        half: tl.constexpr = TURNED // 2
        other = tl.where(k < half, k + half, k - half) if HALVES else k ^ 1
        first = k < half if HALVES else k % 2 == 0
        angle = k % half if HALVES else k // 2
        turned = k < TURNED
        other = tl.where(turned, other, k)
        keys = kv_ptr + (row * LAYERS + layer) * (2 * HEADS * WIDTH) + head * WIDTH
        turns = turn_ptr + tl.load(positions_ptr + row) * TURNED + angle
        key, pair = tl.load(keys + k).to(tl.float32), tl.load(keys + other).to(tl.float32)
        norms = norm_ptr + layer * WIDTH
        scale = 1.0 / tl.sqrt(tl.sum(key * key, 0) / WIDTH + eps)
        kind = kv_ptr.dtype.element_ty
        key = (key * scale * tl.load(norms + k).to(tl.float32)).to(kind).to(tl.float32)
        pair = (pair * scale * tl.load(norms + other).to(tl.float32)).to(kind).to(tl.float32)
        cos = tl.load(turns, mask=turned, other=1.0).to(tl.float32)
        sin = tl.load(turns + half, mask=turned, other=0.0).to(tl.float32)
        key = key * cos + tl.where(first, -pair, pair) * sin
        value = tl.load(keys + HEADS * WIDTH + k)
        cache = caches_ptr + layer * 4
        here = tl.load(cache).to(tl.pointer_type(kind)) + place * tl.load(cache + 2) + head * WIDTH
        tl.store(here + k, key.to(kind))
        here = tl.load(cache + 1).to(tl.pointer_type(kind)) + place * tl.load(cache + 3) + head * WIDTH
        tl.store(here + k, value)


def write(
    kv: torch.Tensor, caches: torch.Tensor, norms: torch.Tensor, turns: torch.Tensor, positions: torch.Tensor,
    places: torch.Tensor, *, layers: int, heads: int, width: int, eps: float, confirmed: torch.Tensor | None,
    rows: int, halves: bool, turned: int,
) -> None:  # fmt: skip
    """`kv` [rows, layers x (keys, values) x heads x width]; `caches` [layers, 4] int64, see `context_write`; `norms`
    [layers, width]; `turns` [positions, turned], cosines then sines; `positions`, `places` [rows] int64, a place below
    0 is left out. Of each request's `rows` the first `confirmed` [requests] are written, all without it. `halves`:
    whether a number's pair is half of `turned` away, else beside it. All contiguous."""
    context_write[(kv.shape[0], layers, heads)](
        kv, caches, norms, turns, positions, places, places if confirmed is None else confirmed, rows, eps,
        HEADS=heads, WIDTH=width, TURNED=turned, LAYERS=layers, COUNTED=confirmed is not None, HALVES=halves,
        num_warps=1,
    )  # fmt: skip
