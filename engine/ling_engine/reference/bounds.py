"""What is asked of a generation: how far it goes, and how its tokens are chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. Temperature 0: the best one, and the rest does not matter."""

    temperature: float = 0.0
    top_p: float = 1.0  # draw from the likeliest tokens that together have this probability
    seed: int = 0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`eos`: the token that ends the answer, None = none does."""

    limit: int
    eos: int | None = None
    sampling: Sampling = GREEDY
