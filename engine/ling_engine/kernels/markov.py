"""DSPARK's drafts of one request, step by step, in one kernel a step. Triton; needs no SGLang.

A step's scores are those that the draft computed for all steps at once, plus a product of a matrix and the row of the
token that was drafted before (a *Markov head* of low rank). SGLang launches four kernels a step: row, product, best of
each block, best of all. Here a step's programs each look for the best of what the step before left, and do the rest.
The matrix is in fp8: eight readings of it are much of what a draft costs.

A row with a temperature is sampled: the best of its scores over the temperature plus Gumbel noise, -log of an
exponential number, is a draw from their softmax (Gumbel 1954; "Gumbel-max trick").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import triton
import triton.language as tl

from . import early

if TYPE_CHECKING:
    from .plans import Markov

_UNIT: Final = tl.constexpr(2.0**-32)  # from 32 random bits to (0, 1]


@triton.jit
def _best(scores_ptr, words_ptr, PARTS: tl.constexpr, WIDE: tl.constexpr, WORDS: tl.constexpr):
    """The word of the highest of PARTS scores, the lowest of several; a word in any case."""
    part = tl.arange(0, WIDE)
    score = tl.load(scores_ptr + part, mask=part < PARTS, other=-float("inf"), cache_modifier=".cg")
    word = tl.load(words_ptr + part, mask=part < PARTS, other=WORDS - 1, cache_modifier=".cg")
    return tl.min(tl.where(score == tl.max(score, 0), word, WORDS - 1), 0)


@triton.jit
def _exponential(seed, word, step, round_):
    """One number a word, of mean 1. Small ones, which win, are exact: log(1 - u) loses them."""
    none = word * 0
    bits, _, _, _ = tl.philox(seed, word, none, none + step, none + round_)
    u = (bits.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * _UNIT
    return tl.where(u < 0.01, u * (1 + u * (0.5 + u * (1.0 / 3.0))), -tl.log(1 - u))


@triton.jit(do_not_specialize=["step"])
def markov_step(
    base_ptr, kept_ptr, first_ptr, rows_ptr, w_ptr, scale_ptr, scores_ptr, words_ptr, tokens_ptr, temperature_ptr,
    round_ptr, seed, step,
    WORDS: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """kept[step] = base[step] + w row of the token before; of each block the best score and its word."""
    part = tl.program_id(0)
    if EARLY:
        early.wait()
    if step == 0:
        token = tl.load(first_ptr)
    else:
        before = (step - 1) * PARTS
        token = _best(scores_ptr + before, words_ptr + before, PARTS, WIDE, WORDS).to(tl.int64)
        if part == 0:
            tl.store(tokens_ptr + step - 1, token)
    k = tl.arange(0, RANK)
    row = tl.load(rows_ptr + token * RANK + k).to(tl.float32)
    temperature = tl.load(temperature_ptr)
    round_ = tl.load(round_ptr).to(tl.int32)
    best = -float("inf")
    found = WORDS - 1
    for at in tl.static_range(0, BLOCK, TILE):
        word = part * BLOCK + at + tl.arange(0, TILE)
        inside = word < WORDS
        w = tl.load(w_ptr + word[:, None].to(tl.int64) * RANK + k[None, :], mask=inside[:, None], other=0.0)
        bias = tl.sum(w.to(tl.float16).to(tl.float32) * row[None, :], axis=1)
        bias *= tl.load(scale_ptr + word, mask=inside, other=0.0)
        base = tl.load(base_ptr + step * WORDS + word, mask=inside, other=0.0).to(tl.float32)
        kept = (base + bias).to(kept_ptr.dtype.element_ty)
        tl.store(kept_ptr + step * WORDS + word, kept, mask=inside)
        score = kept.to(tl.float32)
        if temperature > 0:
            score = score / temperature - tl.log(_exponential(seed, word, step, round_))
        score = tl.where(inside, score, -float("inf"))
        most = tl.max(score, 0)
        which = tl.min(tl.where(score == most, word, WORDS - 1), 0)
        found = tl.where(most > best, which, found)
        best = tl.maximum(best, most)
    tl.store(scores_ptr + step * PARTS + part, best)
    tl.store(words_ptr + step * PARTS + part, found)


@triton.jit
def markov_last(
    scores_ptr, words_ptr, token_ptr, PARTS: tl.constexpr, WIDE: tl.constexpr, WORDS: tl.constexpr, EARLY: tl.constexpr
):
    """The token of the last step."""
    if EARLY:
        early.wait()
    tl.store(token_ptr, _best(scores_ptr, words_ptr, PARTS, WIDE, WORDS).to(tl.int64))


class Head:
    """A Markov head: `rows` [words, rank], one for a token; `small`, `scales` of the matrix [words, rank], as
    `fp8.rounded` gives them."""

    def __init__(self, rows: torch.Tensor, small: torch.Tensor, scales: torch.Tensor, plan: Markov) -> None:
        self._rows, self._small, self._scales, self.plan = rows, small, scales, plan

    def drafted(
        self, base: torch.Tensor, first: torch.Tensor, kept: torch.Tensor, temperature: torch.Tensor,
        round_: torch.Tensor, *, seed: int, pdl: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Tokens [steps] int64 after `first` [1] int64, of the draft's scores `base` [steps, words].

        `kept` [steps, words] gets each step's scores. `temperature` [1] fp32, 0 = the best one is taken; `seed` and
        `round_` [1] int64, which must be another one for every call, say which draw it is. All contiguous.
        """
        steps, words = base.shape
        cut = {"BLOCK": self.plan.words, "TILE": self.plan.tile, "num_warps": self.plan.warps}
        parts = self.plan.parts(words)
        sizes = {"PARTS": parts, "WIDE": triton.next_power_of_2(parts), "WORDS": words, **early.launched(pdl)}
        scores = torch.empty((steps, parts), dtype=torch.float32, device=base.device)
        found = torch.empty((steps, parts), dtype=torch.int32, device=base.device)
        tokens = torch.empty((steps,), dtype=torch.int64, device=base.device)
        for step in range(steps):
            markov_step[(parts,)](
                base, kept, first, self._rows, self._small, self._scales, scores, found, tokens, temperature, round_,
                seed, step, RANK=self._rows.shape[1], **cut, **sizes,
            )  # fmt: skip
        markov_last[(1,)](scores[-1], found[-1], tokens[-1:], num_warps=4, **sizes)
        return tokens
