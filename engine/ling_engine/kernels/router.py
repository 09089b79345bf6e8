"""The router for the few rows of a decoding step: scores in one kernel, the choice of experts in another. Triton.

*Scores*: products in fp32. A program asks for all weights of its few experts at once, before the kernel in front has
ended, so that they come after one wait for memory, and meets some of the rows with them.

*Choice*: that of DeepSeek-V3, as `biased_grouped_topk_impl` of sglang 0.5.23 states it: experts are ranked by
sigmoid(score) + bias, groups by the sum of their two best; of the best groups the best experts, weighted by
sigmoid(score). Of equals the lower number wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from . import early

if TYPE_CHECKING:
    from .plans import Choice, Scores


@triton.jit
def router_scores(
    x_ptr, w_ptr, out_ptr, rows,
    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[row, expert] = x w, in fp32, of BLOCK experts and ROWS rows."""
    expert = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, WIDE)
    inside = k < HIDDEN
    w = tl.load(w_ptr + expert[:, None] * HIDDEN + k[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
    if EARLY:
        early.wait()
    for at in tl.static_range(ROWS):
        row = tl.program_id(1) * ROWS + at
        x = tl.load(x_ptr + row * HIDDEN + k, mask=inside & (row < rows), other=0.0).to(tl.float32)
        total = tl.sum(w * x[None, :], axis=1)
        inner = (expert >= 0) & (row < rows)  # every expert of a row that there is
        tl.store(out_ptr + row * EXPERTS + expert, total, mask=inner)


def scores(x: torch.Tensor, weight: torch.Tensor, *, plan: Scores, pdl: bool) -> torch.Tensor:
    """`x` [rows, hidden], `weight` [experts, hidden], of any floating types, both contiguous; experts a multiple of
    `plan.experts`. Returns [rows, experts] fp32."""
    experts, hidden = weight.shape
    rows = x.shape[0]
    out = torch.empty((rows, experts), dtype=torch.float32, device=x.device)
    router_scores[(experts // plan.experts, triton.cdiv(rows, plan.rows))](
        x, weight, out, rows, HIDDEN=hidden, EXPERTS=experts, WIDE=triton.next_power_of_2(hidden),
        BLOCK=plan.experts, ROWS=plan.rows, num_warps=plan.warps, **early.launched(pdl),
    )  # fmt: skip
    return out


_NONE = tl.constexpr(-(2**31))  # below every rank


@triton.jit
def _rank(value):
    """A whole number that is ordered as the value is: a warp finds the largest of these in one instruction."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(rank):
    return tl.where(rank < 0, rank ^ 0x7FFFFFFF, rank).to(tl.float32, bitcast=True)


@triton.jit
def router_choice(
    scores_ptr, bias_ptr, padded_ptr, weights_ptr, ids_ptr, scale,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, OF_GROUPS: tl.constexpr, MEMBERS: tl.constexpr,
    CHOSEN: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr,
    RENORMALIZE: tl.constexpr, SCALED: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row: SLOTS weights and ids, of which the last SLOTS - CHOSEN are shared experts."""
    row = tl.program_id(0)
    group = tl.arange(0, GROUPS)
    member = tl.arange(0, MEMBERS)
    size: tl.constexpr = EXPERTS // GROUPS
    expert = group[:, None] * size + member[None, :]
    inside = (member < size)[None, :] & (group >= 0)[:, None]
    bias = tl.load(bias_ptr + expert, mask=inside, other=0.0)
    if EARLY:
        early.wait()
    score = tl.load(scores_ptr + row * EXPERTS + expert, mask=inside, other=0.0)
    rank = tl.where(inside, _rank(tl.sigmoid(score) + bias), _NONE)
    best = tl.max(rank, axis=1)
    first = tl.min(tl.where(rank == best[:, None], expert, EXPERTS), axis=1)
    second = tl.max(tl.where(expert == first[:, None], _NONE, rank), axis=1)
    left = _rank(_value(best) + _value(second))
    kept = group < 0
    for _ in tl.static_range(OF_GROUPS):
        taken = group == tl.min(tl.where(left == tl.max(left, axis=0), group, GROUPS), axis=0)
        kept = kept | taken
        left = tl.where(taken, _NONE, left)
    rank = tl.where(kept[:, None], rank, _NONE)
    slot = tl.arange(0, WIDE)
    ids = EXPERTS + slot - CHOSEN
    for at in tl.static_range(CHOSEN):
        taken = tl.min(tl.where(rank == tl.max(rank), expert, EXPERTS))
        rank = tl.where(expert == taken, _NONE, rank)
        ids = tl.where(slot == at, taken, ids)
    routed = slot < CHOSEN
    weight = tl.sigmoid(tl.load(scores_ptr + row * EXPERTS + ids, mask=routed, other=0.0))
    weight = tl.where(routed, weight, 0.0)
    if RENORMALIZE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    weight = tl.where(routed, weight * scale, 1.0) if SCALED else tl.where(routed, weight, 1.0 / scale)
    if PADDED:
        live = row < tl.load(padded_ptr)
        weight = tl.where(live, weight, 0.0)
        ids = tl.where(live, ids, -1)
    tl.store(weights_ptr + row * SLOTS + slot, weight, mask=slot < SLOTS)
    tl.store(ids_ptr + row * SLOTS + slot, ids, mask=slot < SLOTS)


def choose(
    scores: torch.Tensor, bias: torch.Tensor, choice: Choice, padded: torch.Tensor | None = None, *, pdl: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`scores` [rows, experts] and `bias` [experts] fp32, contiguous. `padded`: the number of real rows, int32; the
    others get no expert (-1). Returns weights fp32 and ids int32, [rows, choice.slots]."""
    rows, experts = scores.shape
    weights = torch.empty((rows, choice.slots), dtype=torch.float32, device=scores.device)
    ids = torch.empty((rows, choice.slots), dtype=torch.int32, device=scores.device)
    router_choice[(rows,)](
        scores, bias, padded, weights, ids, choice.scale,
        EXPERTS=experts, GROUPS=choice.groups, OF_GROUPS=choice.of_groups,
        MEMBERS=triton.next_power_of_2(experts // choice.groups),
        CHOSEN=choice.chosen, SLOTS=choice.slots, WIDE=triton.next_power_of_2(choice.slots),
        RENORMALIZE=choice.renormalize, SCALED=choice.scaled, PADDED=padded is not None,
        num_warps=1, **early.launched(pdl),
    )  # fmt: skip
    return weights, ids
