"""Random parameters for `make-model`: the same bytes for the same seed on any machine, as fast as memory.

One block of random numbers is drawn and repeated, each tensor from its own place in it and with its own scale. The
block's length is prime, so that rows of a matrix do not repeat. Only exactly rounded arithmetic is used.
"""

from __future__ import annotations

import hashlib
import math
import random
from typing import TYPE_CHECKING

import torch

from ling_engine.reference.weights import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_BLOCK = 1048573  # the largest prime below 2**20
TEXT = (10, *range(32, 127))  # what a person can read


class RandomParameters:
    """Draws once; then gives the bytes of any parameter."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed).randbytes(2 * _BLOCK)  # noqa: S311  # the point is that it repeats
        self._uniform = torch.frombuffer(bytearray(drawn), dtype=torch.int16).float() / 32768
        self._seed = seed
        self._scaled: dict[tuple[float, float, torch.dtype], memoryview] = {}

    def pieces(self, name: str, parameter: Tensor, gain: float = 1.0) -> Iterator[memoryview]:
        """The parameter's bytes in order, a few MiB at a time; its numbers are `gain` times what they usually are."""
        scale, shift = _distribution(name, tuple(parameter.shape))
        scale *= gain
        block = self._block(scale, shift, parameter.dtype)
        item, left = parameter.dtype.itemsize, parameter.numel()
        at = int.from_bytes(hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:8]) % _BLOCK
        if name == "lm_head.weight":
            block = self._readable(at, parameter, scale)
            at = 0
        while left:
            count = min(left, len(block) // item - at)
            yield block[at * item : (at + count) * item]
            left, at = left - count, 0

    def _block(self, scale: float, shift: float, dtype: torch.dtype) -> memoryview:
        key = (scale, shift, dtype)
        if key not in self._scaled:
            self._scaled[key] = bytes_of((self._uniform * scale + shift).to(dtype))
        return self._scaled[key]

    def _readable(self, at: int, parameter: Tensor, scale: float) -> memoryview:
        count = parameter.numel()
        rows = self._uniform.roll(-at).repeat(-(-count // _BLOCK))[:count].view(parameter.shape) * scale
        return bytes_of(damp(rows).to(parameter.dtype))


def damp(rows: Tensor) -> Tensor:
    """A head, its rows for readable bytes eight times as long as the others: a person sees text, not U+FFFD."""
    others = torch.ones(len(rows), dtype=torch.bool).index_fill_(
        0, torch.tensor([i for i in TEXT if i < len(rows)]), False
    )
    rows[others] *= 0.125
    return rows


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """(scale, shift) of a uniform number in -1..1, so that the stream keeps its size from layer to layer."""
    match name.split(".")[-2:]:
        case [_, "A_log"]:
            return 0.5, 0.5
        case [_, "dt_bias"]:
            return 0.5, 0.0
        case [_, "expert_bias"]:
            return 0.1, 0.0
        case ["word_embeddings" | "markov_w1", _]:
            return math.sqrt(3), 0.0
        case [module, _] if module.endswith("norm"):
            return 0.1, 1.0
        case _:
            return math.sqrt(3 / shape[-1]), 0.0
