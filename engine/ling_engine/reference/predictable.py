"""Parameters of a target that mostly follows a fixed map from token to token, and of drafts that know the map.

The head's row for the token behind t is t's own embedding, so a target whose layers added nothing would follow the map
always. Everything that writes into the stream is scaled by a dial: the further it is turned, the more often the layers
decide otherwise. Drafts follow the map, so the dial sets how often they are right, and whatever the target's states say
where it leaves the map is what a wrong roll-back would change.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from ling_engine.reference.randoms import TEXT, RandomParameters, damp
from ling_engine.reference.weights import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from ling_engine.reference.writer import Numbers

_WRITERS = ("o_proj.weight", "dense.weight", "down_proj.weight")
_MARKOV = 16.0  # what the Markov head adds to the score of the token behind; others get about a tenth of it


class PredictableParameters:
    """The same interface as RandomParameters, which it takes most of its numbers from."""

    def __init__(self, seed: int, vocabulary: int, dial: float) -> None:
        self._random, self._dial = RandomParameters(seed), dial
        self._before = _inverse(behind(seed, vocabulary))

    def pieces(self, name: str, parameter: Tensor) -> Iterator[memoryview]:
        """The parameter's bytes in order."""
        match name.split(".")[-2:]:
            case ["lm_head", _]:
                rows = self._drawn("model.word_embeddings.weight", parameter)[self._before]
                yield bytes_of((damp(rows) * parameter.shape[1] ** -0.5).to(parameter.dtype))
            case ["eh_proj", _]:
                yield bytes_of(torch.eye(*parameter.shape, dtype=parameter.dtype))  # the token alone, not the row
            case ["markov_w2", _]:
                rows = self._drawn(name.replace("markov_w2", "markov_w1"), parameter)[self._before]
                yield bytes_of((rows * (_MARKOV / parameter.shape[1])).to(parameter.dtype))
            case _:
                yield from self._random.pieces(name, parameter, self._dial if name.endswith(_WRITERS) else 1.0)

    def _drawn(self, name: str, like: Tensor) -> Tensor:
        raw = bytearray().join(self._random.pieces(name, like))
        return torch.frombuffer(raw, dtype=like.dtype).view(like.shape).float()


def behind(seed: int, vocabulary: int) -> list[int]:
    """The map: one cycle through the ids that a person can read, one through the others."""
    drawing, following = random.Random(seed), [0] * vocabulary  # noqa: S311  # the point is that it repeats
    text = set(TEXT)
    for ids in ([i for i in range(vocabulary) if i in text], [i for i in range(vocabulary) if i not in text]):
        drawing.shuffle(ids)
        for one, two in zip(ids, ids[1:] + ids[:1], strict=True):
            following[one] = two
    return following


def fill(module: nn.Module, numbers: Numbers, prefix: str = "") -> None:
    """Gives the module's parameters storage and values; `prefix` stands before their names in a checkpoint."""
    module.to_empty(device="cpu")
    for name, parameter in module.named_parameters():
        view, at = bytes_of(parameter), 0
        for piece in numbers.pieces(prefix + name, parameter):
            view[at : at + len(piece)] = piece
            at += len(piece)


def _inverse(following: list[int]) -> list[int]:
    before = [0] * len(following)
    for one, two in enumerate(following):
        before[two] = one
    return before
