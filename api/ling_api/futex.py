"""Waiting for a word of memory to change, as the kernel offers it: for robust mutexes that tell of their owner's death.

No mutex is locked here and none is trusted: a word is read, nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from typing import Final

OWNER_DIED: Final = 0x40000000  # the kernel's mark in the first word of a robust mutex
WAITERS: Final = 0x80000000  # without it the kernel wakes nobody when the owner dies
_NUMBER: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)
_WAIT: Final = 0


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


_LIBC: Final = _libc()


def known() -> bool:
    """Whether this machine's system call is."""
    return bool(_NUMBER)


def wait(address: int, value: int, seconds: int) -> bool:
    """Sleeps while the word there has that value, so long at most; True when it had another one."""
    patience = _Timespec(seconds, 0)
    number, operation, expected = (ctypes.c_long(_NUMBER), ctypes.c_int(_WAIT), ctypes.c_uint32(value))
    failed = _LIBC.syscall(number, ctypes.c_void_p(address), operation, expected, ctypes.byref(patience), None, 0)
    return bool(failed != 0 and ctypes.get_errno() == errno.EAGAIN)
