"""What a command that was refused must not have done."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def nothing_changed(folder: Path) -> Iterator[None]:
    """Asserts that below the folder no file, folder or socket came, went or was written."""
    before = _seen(folder)
    yield
    assert _seen(folder) == before


def _seen(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode)
    return found
