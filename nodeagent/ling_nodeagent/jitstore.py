"""The node's compiled kernels: archives by namespace and key, bounded, the least recently used given up first.

The agent never looks into an archive, and unpacks none: it is code, made by a pod of a namespace, and goes to pods of
that namespace only. An archive arrives as a sealed memfd, so copying it can neither block nor race with its writer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import FillFailed
from ling_api.memory import memfd

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = logging.getLogger(__name__)
LIMIT = 8 << 30  # bytes of all archives
LARGEST = 2 << 30  # of one
_COPY = 8 << 20


class JitStore:
    """Files of one folder that only the agent writes."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder = folder
        self._limit = limit

    def find(self, namespace: str, key: str) -> int | None:
        """A read-only descriptor, the caller's; the archive counts as used now."""
        path = self._path(namespace, key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        os.utime(path)
        return fd

    def keep(self, namespace: str, key: str, fd: int) -> None:
        """Copies the archive, by rename in place of the one before. Raises ValueError for what is none, OSError."""
        size = os.fstat(fd).st_size
        try:
            final = memfd.sealed(fd)
        except FillFailed as error:
            raise ValueError("the archive is no memfd") from error
        if not final:
            raise ValueError("the archive is not sealed")
        if not 0 < size <= min(LARGEST, self._limit):
            raise ValueError(f"an archive of {size} bytes: at most {min(LARGEST, self._limit)} are kept")
        self._folder.mkdir(parents=True, exist_ok=True)
        new, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            done = 0
            while done < size:
                done += os.sendfile(new, fd, done, min(_COPY, size - done))
            Path(name).rename(self._path(namespace, key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        finally:
            os.close(new)
        self._bound()
        LOG.info("event=jit-kept namespace=%s key=%s bytes=%d", namespace, key[:12], size)

    def _path(self, namespace: str, key: str) -> Path:
        return self._folder / hashlib.sha256(f"{namespace}\0{key}".encode()).hexdigest()

    def _bound(self) -> None:
        found = [(stat.st_mtime_ns, stat.st_size, path) for path in self._folder.iterdir() for stat in (path.stat(),)]
        for path in given_up(found, self._limit):
            path.unlink(missing_ok=True)


def given_up[T](archives: Iterable[tuple[int, int, T]], limit: int) -> list[T]:
    """Of (last use, bytes, what): those that go, so that the rest is within the limit; longest unused first."""
    ordered = sorted(archives, key=lambda one: one[0])
    excess = sum(size for _, size, _ in ordered) - limit
    gone: list[T] = []
    for _, size, what in ordered:
        if excess <= 0:
            break
        gone.append(what)
        excess -= size
    return gone
