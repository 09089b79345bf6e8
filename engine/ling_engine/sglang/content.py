"""The sha256 of a checkpoint's bytes, made beside the load: one pass over its shards, by name, once a process."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from ling_api.errors import BadInput, FillFailed
from ling_engine.reference.tensorfile import shards

if TYPE_CHECKING:
    from pathlib import Path

_PIECE = 16 << 20  # bytes read at a time
_known: dict[Path, Future[str]] = {}


def begin(folder: Path) -> Future[str]:
    """The future digest, 64 hex digits; raises FillFailed from `result()`."""
    if folder not in _known:
        pool = ThreadPoolExecutor(1, thread_name_prefix="content")
        _known[folder] = pool.submit(_hash, folder)
        pool.shutdown(wait=False)
    return _known[folder]


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    try:
        for shard in shards(folder):
            with shard.path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
    except BadInput as error:
        raise FillFailed(str(error)) from None
    except OSError as error:
        raise FillFailed(f"{folder}: cannot be read: {error}") from error
    return digest.hexdigest()
