"""From a checkpoint's shards into the parameters, in place: each byte is read once, hashed, and lies where it stays."""

from __future__ import annotations

import ctypes
import hashlib
from typing import TYPE_CHECKING

import torch

from ling_api.errors import BadInput, FillFailed
from ling_engine.reference.matching import match
from ling_engine.reference.tensorfile import shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from pathlib import Path

    from torch import Tensor, nn

    from ling_engine.reference.matching import Naming
    from ling_engine.reference.tensorfile import Stored

_PIECE = 8 << 20  # bytes read at a time


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a dense CPU tensor, which the view keeps alive."""
    array = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]  # a ctypes array may carry attributes
    return memoryview(array).cast("B")


def load(
    folder: Path, module: nn.Module, naming: Naming, progress: Callable[[float], None], *, whole: bool = True
) -> str:
    """Fills the module's parameters, which must have storage; returns the sha256 of the shards' bytes, by name.

    Not `whole`: skips what belongs to other sets, and returns "". Raises FillFailed with one sentence.
    """
    parameters = dict(module.named_parameters())
    try:
        found = shards(folder)
        names = match(found, parameters, naming)
    except BadInput as error:
        raise FillFailed(str(error)) from None
    own = sum(t.end - t.begin for shard in found for t in shard.tensors if names[t.name])
    filling = _Filling(progress, sum(shard.size for shard in found) if whole else own)
    try:
        for shard in found:
            with shard.path.open("rb") as file:
                if whole:
                    start = shard.tensors[0].begin if shard.tensors else shard.size
                    filling.read(file, memoryview(bytearray(start)))
                for tensor in shard.tensors:
                    if names[tensor.name] or whole:
                        file.seek(tensor.begin)
                        filling.fill(file, tensor, parameters.get(names[tensor.name]))
    except OSError as error:
        raise FillFailed(f"{folder}: cannot be read ({error})") from None
    return filling.digest.hexdigest() if whole else ""


class _Filling:
    """How far it is."""

    def __init__(self, progress: Callable[[float], None], total: int) -> None:
        self.digest = hashlib.sha256()
        self._progress, self._total, self._done = progress, total, 0

    def fill(self, file: BufferedReader, tensor: Stored, target: Tensor | None) -> None:
        """The file's next tensor into its parameter; None: past it."""
        if target is not None and str(target.dtype) == f"torch.{tensor.dtype}":
            self.read(file, bytes_of(target))
            return
        aside = bytearray(tensor.end - tensor.begin)
        self.read(file, memoryview(aside))
        if target is not None:
            stored = torch.frombuffer(aside, dtype=getattr(torch, tensor.dtype)).view(tensor.shape)
            with torch.no_grad():
                target.copy_(stored)

    def read(self, file: BufferedReader, view: memoryview) -> None:
        """The file's next bytes, as many as the view has."""
        for at in range(0, len(view), _PIECE):
            piece = view[at : at + _PIECE]
            if file.readinto(piece) != len(piece):
                raise FillFailed(f"{file.name}: became shorter while it was read")
            self.digest.update(piece)
            self._done += len(piece)
            self._progress(self._done / self._total)
