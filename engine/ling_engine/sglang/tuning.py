"""Triton's tuning, by one process at a time: who comes second takes what the first found.

Kernels of KDA for prompts are tuned by their times where no result is kept yet. The ranks of an engine would each tune
by times of their own, and keep them for as long as they live: sums in another order in each, so other answers, by
rounding, than those of every engine that comes later and takes the one result that stayed (Triton 3.8,
`runtime/autotuner.py`). So would engines that start together; those that share a folder of kernels are held to it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TUNING: Final = "triton.runtime.autotuner.Autotuner.check_disk_cache"


def alone(original: Callable[..., Any], tuner: Any, key: Any, *more: Any) -> Any:
    """Around TUNING, which looks for a kept result before it tunes.

    Each kernel and key has a turn of its own: a rank that tunes waits for its GPU, which may wait for what another rank
    launches before it comes to that kernel.
    """
    folder = Path(importlib.import_module("triton").knobs.cache.dir)
    name = hashlib.sha256(f"{tuner.base_fn.__name__} {key}".encode()).hexdigest()[:16]
    with turn(folder / f".tuning-{name}.lock"):
        return original(tuner, key, *more)


@contextlib.contextmanager
def turn(file: Path) -> Iterator[None]:
    """Ends with the block, or the process. Where nothing can be written nobody keeps a result either: no turns."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
