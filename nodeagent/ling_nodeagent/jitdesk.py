"""Launchers ask for compiled kernels and offer them; the store's files are read and written beside the loop."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from .jitstore import JitStore
from .store import closing

if TYPE_CHECKING:
    from pathlib import Path

    from .connection import Connection

LOG = logging.getLogger(__name__)
AT_ONCE = 4  # offers being copied; more are passed over, their launchers offer again when they have more


class JitDesk:
    """One of an agent; all methods on the loop's thread."""

    def __init__(self, folder: Path) -> None:
        self._store = JitStore(folder)
        self._copying: set[asyncio.Task[None]] = set()

    def asked(self, conn: Connection, namespace: str, key: str) -> None:
        """Answers with the archive, if there is one."""
        archive = self._store.find(namespace, key)
        own = [] if archive is None else [archive]
        with closing(own):
            size = os.fstat(archive).st_size if archive is not None else 0
            conn.put({"op": "jit", "key": key, "bytes": size}, own)

    def offered(self, namespace: str, key: str, fd: int) -> None:
        """The descriptor becomes ours."""
        if len(self._copying) >= AT_ONCE:
            os.close(fd)
            return
        task = asyncio.get_running_loop().create_task(self._keep(namespace, key, fd))
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)

    async def _keep(self, namespace: str, key: str, fd: int) -> None:
        try:
            await asyncio.to_thread(self._store.keep, namespace, key, fd)
        except (OSError, ValueError) as error:
            LOG.warning("event=jit-refused namespace=%s reason=%r", namespace, str(error))
        finally:
            os.close(fd)
