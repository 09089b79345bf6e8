"""Watches the pages in which servers hold a robust mutex: the kernel marks it when its owner dies.

Only a hint, and the owner's own: a page is mapped read-only, its size is sealed, and no word in it is believed beyond
"its owner is gone". A thread for each page waits on its futex; nothing of the C library's mutexes runs here, since
their list pointers lie in memory that the other side writes.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import platform
import threading
from typing import TYPE_CHECKING, Final

from ling_api import fdpass

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)
PAGE: Final = 4096
OWNER_DIED: Final = 0x40000000
LOOK_AGAIN: Final = 5.0  # seconds: a watcher that nobody needs ends then
FIDGETS: Final = 1000  # changes of the word that say nothing, before it is no longer watched
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
_WAIT: Final = 0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Pulses:
    """`on_hint(key)` on the loop, once, when the owner of that key's page is gone."""

    def __init__(self, on_hint: Callable[[int], None]) -> None:
        self._on_hint = on_hint
        self._ended: dict[int, threading.Event] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def watch(self, key: int, fd: int) -> None:
        """The descriptor is closed here. Raises ProtocolError when it is no page whose size is sealed."""
        self.forget(key)
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size != PAGE:
                raise fdpass.ProtocolError("pulse: the page must be a memfd of 4096 bytes, sealed against shrinking")
            page = _map(fd)
        except OSError as error:
            raise fdpass.ProtocolError(f"pulse: the page cannot be mapped: {error.strerror}") from error
        finally:
            os.close(fd)
        ended = self._ended[key] = threading.Event()
        hint = (asyncio.get_running_loop(), key)
        threading.Thread(target=self._wait, args=(page, ended, *hint), daemon=True, name=f"pulse-{key}").start()

    def forget(self, key: int) -> None:
        """Its hint is wanted no more."""
        ended = self._ended.pop(key, None)
        if ended is not None:
            ended.set()

    def close(self) -> None:
        for key in tuple(self._ended):
            self.forget(key)

    def _wait(self, page: int, ended: threading.Event, loop: asyncio.AbstractEventLoop, key: int) -> None:
        word, fidgets = ctypes.c_uint32.from_address(page), 0
        while not ended.is_set() and fidgets < FIDGETS:
            value = word.value
            if value & OWNER_DIED:
                if not ended.is_set() and not loop.is_closed():
                    loop.call_soon_threadsafe(self._hinted, key, ended)
                break
            fidgets += _futex_wait(page, value)
        _munmap(page)

    def _hinted(self, key: int, ended: threading.Event) -> None:
        if self._ended.get(key) is ended:
            self.forget(key)
            self._on_hint(key)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.syscall.restype = ctypes.c_long
    return libc


_LIBC: Final = _libc()


def _map(fd: int) -> int:
    found = _LIBC.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def _munmap(page: int) -> None:
    _LIBC.munmap(page, PAGE)


def _futex_wait(page: int, value: int) -> int:
    """Waits while the word has that value, 5 s at most; 1 when it had not, or when futexes are not known here."""
    patience = _Timespec(int(LOOK_AGAIN), 0)
    number, operation, expected = (ctypes.c_long(_FUTEX), ctypes.c_int(_WAIT), ctypes.c_uint32(value))
    if not _FUTEX:
        return FIDGETS
    failed = _LIBC.syscall(number, ctypes.c_void_p(page), operation, expected, ctypes.byref(patience), None, 0)
    return int(failed != 0 and ctypes.get_errno() == errno.EAGAIN)
