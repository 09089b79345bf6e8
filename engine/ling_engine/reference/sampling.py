"""Which token follows, given the model's scores: the best one, or one drawn at random.

The draw at a position depends on the request's seed and that position alone, not on how tokens before it were found.
Whoever scores the position (the target, or a draft that guesses ahead of it) chooses with the same noise: a draft that
knows the target's distribution then guesses its draw, and the answer is the target's own whatever a draft says.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ling_engine.reference.bounds import Sampling


def choose(scores: Tensor, position: int, sampling: Sampling) -> list[int]:
    """scores [T, vocabulary] of the tokens at positions position.. -> T ids."""
    if sampling.temperature == 0:
        ids: list[int] = scores.argmax(-1).tolist()
        return ids
    likely = probabilities(scores, sampling)
    noise = torch.stack([_noise(sampling.seed, position + row, scores.shape[-1]) for row in range(len(scores))])
    drawn: list[int] = (likely / noise).argmax(-1).tolist()  # of exponential clocks with these rates, the first to ring
    return drawn


def probabilities(scores: Tensor, sampling: Sampling) -> Tensor:
    """[T, vocabulary] float64, rows sum to 1. The temperature must not be 0."""
    wide = scores.double()
    likely = ((wide - wide.max(-1, keepdim=True).values) / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        ordered, ids = torch.sort(likely, stable=True, dim=-1, descending=True)
        behind = ordered.cumsum(-1) - ordered >= sampling.top_p
        behind[:, 0] = False  # the likeliest one always stays
        likely = likely.scatter(-1, ids, ordered.masked_fill(behind, 0.0))
        likely = likely / likely.sum(-1, keepdim=True)
    return likely


def _noise(seed: int, position: int, width: int) -> Tensor:
    """`width` exponential times, independent for every seed and position."""
    digest = hashlib.sha256(f"{seed}/{position}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], signed=True))
    return torch.empty(width, dtype=torch.float64).exponential_(generator=generator)
