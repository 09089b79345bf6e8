"""Whether two descriptors are the same region, whoever sent them. Standard library only.

A memfd has an inode of its own. Descriptors of a GPU's memory are all the one device file; what tells them apart is the
open file behind them, which duplicates share, also those that another process sent. Linux says so from 6.10 on
(F_DUPFD_QUERY), before that by kcmp, which seccomp keeps from most containers.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_F_DUPFD_QUERY: Final = 1027
_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0

_libc = ctypes.CDLL(None, use_errno=True)


def same(one: int, two: int) -> bool:
    """Never true by mistake; false where the kernel does not tell. Raises OSError for a closed descriptor."""
    first, second = os.fstat(one), os.fstat(two)
    if (first.st_dev, first.st_ino) != (second.st_dev, second.st_ino):
        return False
    if stat.S_ISREG(first.st_mode):
        return True
    try:
        return fcntl.fcntl(one, _F_DUPFD_QUERY, two) == 1
    except OSError:  # a kernel before 6.10
        return _kcmp(one, two)


def all_same(ones: Sequence[int], others: Sequence[int]) -> bool:
    """Whether both are the same regions in the same order."""
    return len(ones) == len(others) and all(map(same, ones, others))


def _kcmp(one: int, two: int) -> bool:
    number = _KCMP.get(platform.machine())
    return number is not None and _libc.syscall(number, os.getpid(), os.getpid(), _KCMP_FILE, one, two) == 0
