"""Host memory: regions are memfds, mapped by libc into one reserved address range.

Nothing here touches a page: who touches first pays (cgroup), so the keeper populates with posix_fallocate. Giving up
write access maps each region again, from a descriptor opened read-only, because only a mapping that never could write
lets the WRITE seal be added.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final

from ling_api.errors import DeviceError, FillFailed, WriterLeft

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_PROT_NONE: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class MemfdMemory:
    """Regions in host memory, for a rank."""

    kind = "memfd"
    granularity = 2 << 20  # whole huge pages, where the kernel has them
    max_region = 4 << 30

    def create(self, size: int) -> int:
        """A memfd of `size` bytes, none of them allocated yet; the caller's. Raises DeviceError."""
        if size <= 0 or size % self.granularity:
            raise DeviceError(f"a region of {size} bytes; sizes are multiples of {self.granularity}")
        try:
            fd = os.memfd_create("ling-region", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"cannot create a region: {error.strerror}") from error
        try:
            os.ftruncate(fd, size)
        except (OSError, OverflowError) as error:
            os.close(fd)
            raise DeviceError(f"cannot size a region of {size} bytes: {error}") from error
        return fd

    def map(self, fds: Sequence[int], sizes: Sequence[int], *, writable: bool) -> MemfdMapping:
        """See ling_api.memory.base. Raises DeviceError, also for a descriptor whose size is not the one stated."""
        if len(fds) != len(sizes) or not fds:
            raise DeviceError(f"{len(fds)} descriptors for {len(sizes)} regions")
        room = self.max_region if writable else 0
        mapping = MemfdMapping(sum(sizes) + room)
        try:
            for fd, size in zip(fds, sizes, strict=True):
                mapping.append(fd, size, writable=writable)
        except BaseException:
            mapping.close()
            raise
        return mapping


class MemfdMapping:
    """Regions back to back in one reserved range; see ling_api.memory.base.Mapping."""

    device = "cpu"

    def __init__(self, reserve: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._reserved = reserve
        self._sizes: list[int] = []
        self._files: list[tuple[int, int]] = []  # device and inode of each region
        self._writable = False
        self.address = _map(0, reserve, _PROT_NONE, flags, -1)

    @property
    def size(self) -> int:
        """Bytes of all regions."""
        return sum(self._sizes)

    def append(self, fd: int, size: int, *, writable: bool) -> None:
        """Maps a region directly behind the last. Raises DeviceError."""
        found = os.fstat(fd)
        if found.st_size != size:
            raise DeviceError(f"region {len(self._sizes)} has {found.st_size} bytes; its manifest says {size}")
        if size > self._reserved - self.size:
            raise DeviceError(f"no addresses left for {size} more bytes behind {self.size} of {self._reserved}")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        _map(self.address + self.size, size, access, mmap.MAP_SHARED | _MAP_FIXED, fd)
        self._sizes.append(size)
        self._files.append((found.st_dev, found.st_ino))
        self._writable = writable

    def extend(self, fd: int, size: int) -> None:
        """A tail region of the filler. Raises DeviceError, also after `make_read_only`."""
        if not self._writable:
            raise DeviceError("only a writable mapping can be extended")
        self.append(fd, size, writable=True)

    def make_read_only(self, fds: Sequence[int]) -> None:
        """Maps every region again at its address, from its memfd reopened read-only. Raises DeviceError."""
        if [(found.st_dev, found.st_ino) for found in map(os.fstat, fds)] != self._files:
            raise DeviceError("these descriptors are not the mapping's regions in their order")
        address = self.address
        for fd, size in zip(fds, self._sizes, strict=True):
            again = reader(fd)
            try:
                _map(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, again)
            finally:
                os.close(again)
            address += size
        self._writable = False

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        """A view of the bytes. Raises DeviceError when they are not all inside."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise DeviceError(f"bytes {offset} to {offset + nbytes} are not inside a mapping of {self.size}")
        view = memoryview((ctypes.c_ubyte * nbytes).from_address(self.address + offset)).cast("B")
        return view if self._writable else view.toreadonly()

    def close(self) -> None:
        """Unmaps the whole range. Raises DeviceError when it is closed already."""
        if not self._reserved:
            raise DeviceError("the mapping is closed already")
        _libc.munmap(self.address, self._reserved)
        self._reserved = 0
        self._sizes.clear()


def seal(fd: int) -> None:
    """Makes a memfd's bytes and size final; twice is harmless.

    Raises WriterLeft while somebody maps it writable, FillFailed when the descriptor is no memfd that can be sealed.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise WriterLeft("a region is still mapped writable by somebody; it cannot be sealed") from error
        raise FillFailed(f"a region cannot be sealed: {error.strerror}") from error


def sealed(fd: int) -> bool:
    """Whether a memfd's bytes and size are final. Raises FillFailed when the descriptor is no memfd."""
    return _seals(fd) & _SEALS == _SEALS


def reader(fd: int) -> int:
    """A new descriptor of the same memfd, opened read-only; the caller's. Raises FillFailed when it is no memfd."""
    _seals(fd)  # opening what a stranger sent (a pipe, a device) could block or do worse
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)


def _seals(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise FillFailed(f"a region's descriptor is no memfd: {error.strerror}") from error


def _map(address: int, size: int, access: int, flags: int, fd: int) -> int:
    result = _libc.mmap(address or None, size, access, flags, fd, 0)
    if result is None or result == _FAILED:
        raise DeviceError(f"cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
    return int(result)
