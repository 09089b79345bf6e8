"""What this process has open, to show that nothing leaks."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_descriptors() -> set[int]:
    """Every open descriptor number, but the one that looked."""
    fds = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    return {fd for fd in fds if _is_open(fd)}


@contextlib.contextmanager
def none_leaked() -> Iterator[None]:
    """Asserts that exactly the same descriptors are open afterwards."""
    collecting = gc.isenabled()
    gc.disable()  # what an earlier test left in a cycle must not be closed in between
    try:
        before = open_descriptors()
        yield
        after = open_descriptors()
    finally:
        if collecting:
            gc.enable()
    assert after == before, f"left open: {sorted(after - before)}; closed: {sorted(before - after)}"


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
