"""Writes a checkpoint: shards in safetensors format, their index, config.json and what lies beside it."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any, Protocol

from ling_engine.reference.tensorfile import INDEX, SINGLE, header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

_SHARD = 1 << 30  # bytes; a tensor never spans shards


class Numbers(Protocol):
    """Where parameters come from."""

    def pieces(self, name: str, parameter: Tensor) -> Iterator[memoryview]:
        """The parameter's bytes in order."""


def write(
    folder: Path,
    keys: Mapping[str, object],
    parameters: Mapping[str, Tensor],
    numbers: Numbers,
    texts: Mapping[str, Any],
) -> str:
    """Bytes for these parameters (of any device, `meta` too), config.json, other files by name.

    Returns the sha256 of the shards' bytes, 64 hex digits.
    """
    digest, shards = hashlib.sha256(), _split(parameters)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file).open("wb", buffering=0) as out:
            header = header_of({n: (str(parameters[n].dtype)[6:], tuple(parameters[n].shape)) for n in names})
            pieces = itertools.chain.from_iterable(numbers.pieces(n, parameters[n]) for n in names)
            for piece in itertools.chain((memoryview(header),), pieces):
                out.write(piece)
                digest.update(piece)
        places |= dict.fromkeys(names, file)
    index: dict[str, Any] = {}
    if len(shards) > 1:
        total = sum(p.nbytes for p in parameters.values())
        index = {INDEX: {"metadata": {"total_size": total}, "weight_map": places}}
    for name, value in (
        {**index, **texts} | {"config.json": keys}
    ).items():  # config.json last: without it, no checkpoint
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    return digest.hexdigest()


def _split(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, parameter in parameters.items():
        if filled and filled + parameter.nbytes > _SHARD:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += parameter.nbytes
    return shards
