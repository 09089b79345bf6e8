"""Watches the pages in which servers hold a robust mutex: the kernel marks it when its owner dies.

Only a hint, and the owner's own: a page is mapped read-only, its size is sealed, and no word in it is believed beyond
"its owner is gone". A thread for each page waits on its futex; nothing of the C library's mutexes runs here, since
their list pointers lie in memory that the other side writes. A folder has so many threads and no more, those counted
that nobody needs and that have not ended yet; beyond that a death is told by the kernel alone, a little later.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import mmap
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from ling_api import fdpass, futex

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)
PAGE: Final = 4096
LOOK_AGAIN: Final = 5  # seconds: a watcher that nobody needs ends then
MOST: Final = 64  # threads of one folder; a server of 8 ranks needs 9
FIDGETS: Final = 1000  # changes of the word that say nothing, before it is no longer watched


class Pulses:
    """`on_hint(key)` on the loop, once, when the owner of that key's page is gone."""

    def __init__(self, on_hint: Callable[[int], None]) -> None:
        self._on_hint = on_hint
        self._ended: dict[int, threading.Event] = {}
        self._live: Counter[str] = Counter()  # threads that have not ended, by folder
        self._lock = threading.Lock()  # of the counts: threads end where they are

    def __len__(self) -> int:
        return len(self._ended)

    def live(self, folder: str) -> int:
        """How many threads that folder has, wanted or not."""
        with self._lock:
            return self._live[folder]

    def watch(self, key: int, fd: int, folder: str = "") -> None:
        """The descriptor is closed here; a folder that has MOST threads gets no more of them, hence no hint.

        Raises ProtocolError when it is no page whose size is sealed, or the key has one already.
        """
        try:
            if key in self._ended:
                raise fdpass.ProtocolError("pulse: this connection has told of its page already")
            page = _checked(fd) if self.live(folder) < MOST else 0
        finally:
            os.close(fd)
        if not page:
            LOG.info("event=pulse-passed-over folder=%s threads=%d", folder, MOST)
            return
        ended = self._ended[key] = threading.Event()
        self._count(folder, 1)
        args = (page, ended, asyncio.get_running_loop(), key, folder)
        try:
            threading.Thread(target=self._watched, args=args, daemon=True, name=f"pulse-{key}").start()
        except RuntimeError as error:  # the system gives no more threads
            LOG.warning("event=pulse-passed-over folder=%s reason=%r", folder, str(error))
            del self._ended[key]
            self._gone(page, folder)

    def forget(self, key: int) -> None:
        """Its hint is wanted no more."""
        ended = self._ended.pop(key, None)
        if ended is not None:
            ended.set()

    def close(self) -> None:
        for key in tuple(self._ended):
            self.forget(key)

    def _count(self, folder: str, more: int) -> None:
        with self._lock:
            self._live[folder] += more
            if not self._live[folder]:
                del self._live[folder]

    def _gone(self, page: int, folder: str) -> None:
        _munmap(page)
        self._count(folder, -1)

    def _watched(
        self, page: int, ended: threading.Event, loop: asyncio.AbstractEventLoop, key: int, folder: str
    ) -> None:
        try:
            if _owner_dies(page, ended) and not loop.is_closed():
                loop.call_soon_threadsafe(self._hinted, key, ended)
        finally:
            self._gone(page, folder)

    def _hinted(self, key: int, ended: threading.Event) -> None:
        if self._ended.get(key) is ended:
            self.forget(key)
            self._on_hint(key)


def _owner_dies(page: int, ended: threading.Event) -> bool:
    """Waits until the page's owner is gone (True), or nobody wants to know, or the word says nothing too often."""
    word, fidgets = ctypes.c_uint32.from_address(page), 0
    while not ended.is_set() and fidgets < FIDGETS:
        value = word.value
        if value & futex.OWNER_DIED:
            return not ended.is_set()
        fidgets += futex.wait(page, value, LOOK_AGAIN) if futex.known() else FIDGETS
    return False


def _checked(fd: int) -> int:
    """The page, mapped. Raises ProtocolError."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size != PAGE:
            raise fdpass.ProtocolError("pulse: the page must be a memfd of 4096 bytes, sealed against shrinking")
        return _map(fd)
    except OSError as error:
        raise fdpass.ProtocolError(f"pulse: the page cannot be mapped: {error.strerror}") from error


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


_LIBC: Final = _libc()


def _map(fd: int) -> int:
    found = _LIBC.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def _munmap(page: int) -> None:
    _LIBC.munmap(page, PAGE)
