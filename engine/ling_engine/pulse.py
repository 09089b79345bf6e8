"""A page that tells at once that this process dies, long before its memory is free.

A process with much memory is reported dead only when the kernel has torn all of it down: half a second to a second for
2 GiB on a busy machine, measured. A robust mutex is let go first (0.3 to 3 ms in the same kills): it lies in a shared
page, the main thread holds it for ever, and who watches the page sees the kernel mark it. No thread ids are compared,
so it works across PID namespaces.

`Pulse` is a process's own and is told to the agent; `Pulses` are of children that a process has yet to fork.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from typing import TYPE_CHECKING, Final

from ling_api import futex

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE: Final = 4096
_SHARED, _ROBUST = 1, 1
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_STRIDE: Final = 64  # bytes of a mutex and what stands behind it
_PID_AT: Final = 48  # behind the mutex (40 bytes, 48 on arm64): whose it is
_LOOK_AGAIN_S: Final = 5


class Pulse:
    """Make it in the main thread: the end of the thread that made it is what the page tells. Never closed."""

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a pulse is the main thread's: any other may end while the process lives")
        self.fd = os.memfd_create("ling-pulse", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, _PAGE)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)  # who maps it can trust its size
        self._page = mmap.mmap(self.fd, _PAGE)
        self._mutex = (ctypes.c_char * _PAGE).from_buffer(self._page)
        _make(self._mutex)
        _require(ctypes.CDLL(None).pthread_mutex_lock(self._mutex))
        ctypes.c_uint32.from_buffer(self._page).value |= futex.WAITERS


class Pulses:
    """Made before the fork, for so many children: each takes one, the parent waits for the end of whoever did."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, count * _STRIDE)  # shared with every fork
        self._mutexes = [(ctypes.c_char * _STRIDE).from_buffer(self._memory, at * _STRIDE) for at in range(count)]
        for mutex in self._mutexes:
            _make(mutex)

    def take(self) -> bool:
        """In a child's main thread, once. False: there are more children than were thought of."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a pulse is the main thread's: any other may end while the process lives")
        libc = ctypes.CDLL(None)
        for at, mutex in enumerate(self._mutexes):
            # One whose owner has died is not taken over: that would wipe out the kernel's mark.
            if self._word(at).value == 0 and libc.pthread_mutex_trylock(mutex) == 0:
                ctypes.c_uint32.from_buffer(mutex, _PID_AT).value = os.getpid()
                self._word(at).value |= futex.WAITERS
                return True
        return False

    def owner_gone(self, at: int, wanted: Callable[[], bool]) -> int:
        """Blocks until the owner of that one dies; its pid, or 0 when that is `wanted` no more."""
        word = self._word(at)
        while wanted() and futex.known():
            value = word.value
            if value & futex.OWNER_DIED:
                return int(ctypes.c_uint32.from_buffer(self._mutexes[at], _PID_AT).value)
            futex.wait(ctypes.addressof(word), value, _LOOK_AGAIN_S)
        return 0

    def _word(self, at: int) -> ctypes.c_uint32:
        """The futex is a mutex's first word."""
        return ctypes.c_uint32.from_buffer(self._mutexes[at])


def _make(mutex: ctypes.Array[ctypes.c_char]) -> None:
    """A robust one that processes share, in that memory."""
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(64)
    _require(libc.pthread_mutexattr_init(attributes))
    _require(libc.pthread_mutexattr_setpshared(attributes, _SHARED))
    _require(libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
    _require(libc.pthread_mutex_init(mutex, attributes))


def _require(failed: int) -> None:
    if failed:
        raise OSError(failed, f"no robust mutex: {os.strerror(failed)}")
