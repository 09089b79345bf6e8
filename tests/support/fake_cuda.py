"""A CUDA driver in memory, shaped like cuda.bindings.driver and as strict: for ling_api.memory.cuda without a GPU.

One `FakeCuda` is what one process sees; processes of a test share a `FakeGpu`. Physical allocations are memfds, so that
real descriptors travel. Calls that need a current context fail without one. The call numbered `fail_at` fails with
CUDA_ERROR_UNKNOWN, and `finish` tells what is still open: every way out of a call sequence can be walked.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ling_api.checks import sum64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRANULARITY = 4096
CONTEXT = 0xC0DE


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_UNKNOWN = 999


OK = CUresult.CUDA_SUCCESS
INVALID = CUresult.CUDA_ERROR_INVALID_VALUE


@dataclass(eq=False)
class FakeGpu:
    """What all processes share: the allocations by inode, and how many bytes there are."""

    memory: int = 1 << 30
    allocations: dict[int, tuple[int, int]] = field(default_factory=dict)  # inode: size, device


@dataclass(eq=False)
class FakeHandle:
    fd: int
    size: int
    device: int
    imported: bool


@dataclass(eq=False)
class FakeMap:
    handle: FakeHandle
    bytes: mmap.mmap
    access: int = 0


def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Counts the call, makes the chosen one fail, and asks for a context."""

    def call(self: FakeCuda, *args: Any) -> Any:
        name = method.__name__
        self.calls.append(name)
        if len(self.calls) == self.fail_at:
            return CUresult.CUDA_ERROR_UNKNOWN, None
        if self.lost and name in ("cuCtxSynchronize", "cuMemUnmap"):
            return (CUresult.CUDA_ERROR_UNKNOWN,)
        if name.startswith(("cuMem", "cuLaunch", "cuStream", "cuModule", "cuCtxSync")) and not self.stack:
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return method(self, *args)

    return call


class FakeCuda:
    CUresult = CUresult
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READ=1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUmemAllocationProp = CUmemLocation = CUmemAccessDesc = SimpleNamespace

    def __init__(self, gpu: FakeGpu, *, devices: int = 1, fail_at: int = 0) -> None:
        self.gpu = gpu
        self.devices = devices
        self.fail_at = fail_at
        self.lost = False
        self.calls: list[str] = []
        self.stack: list[int] = []
        self.handles: list[FakeHandle] = []
        self.ranges: dict[int, int] = {}
        self.maps: dict[int, FakeMap] = {}
        self.scratch: dict[int, bytearray] = {}
        self.next = 0x10_0000_0000

    def finish(self) -> None:
        """Raises AssertionError when a handle, range, mapping or context is left, or scratch memory beyond one."""
        left = {"handles": self.handles, "ranges": self.ranges, "maps": self.maps, "scratch": list(self.scratch)[1:]}
        assert not any(left.values()), f"left open: {left}"
        assert not self.stack, "a context was left current"

    def store(self, address: int, data: bytes) -> None:
        """What a kernel of this process would do. Raises PermissionError."""
        for offset, byte in enumerate(data):
            mapped, at = self._find(address + offset)
            if mapped.access != 3:
                raise PermissionError("a write to memory mapped read-only")
            mapped.bytes[at] = byte

    # start, contexts

    @recorded
    def cuInit(self, flags: int) -> tuple[CUresult]:
        return (OK if self.devices else CUresult.CUDA_ERROR_NO_DEVICE,)

    @recorded
    def cuDeviceGetCount(self) -> tuple[CUresult, int]:
        return OK, self.devices

    @recorded
    def cuDeviceGet(self, ordinal: int) -> tuple[CUresult, int | None]:
        return (OK, ordinal) if 0 <= ordinal < self.devices else (CUresult.CUDA_ERROR_INVALID_DEVICE, None)

    @recorded
    def cuDeviceGetUuid(self, device: int) -> tuple[CUresult, SimpleNamespace]:
        return OK, SimpleNamespace(bytes=bytes(15) + bytes([device + 1]))

    @recorded
    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, int]:
        return OK, CONTEXT

    @recorded
    def cuCtxPushCurrent(self, context: int) -> tuple[CUresult]:
        self.stack.append(context)
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[CUresult, int]:
        return OK, self.stack.pop()

    @recorded
    def cuCtxSynchronize(self) -> tuple[CUresult]:
        return (OK,)

    # allocations

    def cuMemGetAllocationGranularity(self, wanted: Any, flag: int) -> tuple[CUresult, int]:
        return OK, GRANULARITY  # asked before there is a need for a context

    @recorded
    def cuMemCreate(self, size: int, wanted: Any, flags: int) -> tuple[CUresult, FakeHandle | None]:
        if size > self.gpu.memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        fd = os.memfd_create("fake-gpu")
        os.ftruncate(fd, size)
        self.gpu.allocations[os.fstat(fd).st_ino] = size, wanted.location.id
        return OK, self._opened(fd, size, wanted.location.id, imported=False)

    @recorded
    def cuMemExportToShareableHandle(self, handle: FakeHandle, kind: int, flags: int) -> tuple[CUresult, int | None]:
        if handle.imported:
            return INVALID, None
        fd = os.dup(handle.fd)
        os.set_inheritable(fd, True)  # as the driver leaves it
        return OK, fd

    @recorded
    def cuMemImportFromShareableHandle(self, fd: int, kind: int) -> tuple[CUresult, FakeHandle | None]:
        known = self.gpu.allocations.get(os.fstat(fd).st_ino)
        if known is None:
            return INVALID, None
        return OK, self._opened(os.dup(fd), *known, imported=True)

    @recorded
    def cuMemGetAllocationPropertiesFromHandle(self, handle: FakeHandle) -> tuple[CUresult, SimpleNamespace]:
        seen = handle.device if handle.device < self.devices else -2
        return OK, SimpleNamespace(location=SimpleNamespace(id=seen))

    def cuMemRelease(self, handle: FakeHandle) -> tuple[CUresult]:
        self.handles.remove(handle)
        os.close(handle.fd)
        return (OK,)

    # addresses

    @recorded
    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[CUresult, int | None]:
        if size % GRANULARITY:
            return INVALID, None
        self.next += 1 << 32
        self.ranges[self.next] = size
        return OK, self.next

    @recorded
    def cuMemMap(self, address: int, size: int, offset: int, handle: FakeHandle, flags: int) -> tuple[CUresult]:
        inside = any(start <= address and address + size <= start + room for start, room in self.ranges.items())
        if not inside or size != handle.size or address in self.maps:
            return (INVALID,)
        self.maps[address] = FakeMap(handle, mmap.mmap(handle.fd, size))
        return (OK,)

    @recorded
    def cuMemSetAccess(self, address: int, size: int, access: Sequence[Any], count: int) -> tuple[CUresult]:
        while size > 0:
            if address not in self.maps or len(access) != count:
                return (INVALID,)
            self.maps[address].access = access[0].flags
            size, address = size - self.maps[address].handle.size, address + self.maps[address].handle.size
        return (OK,)

    @recorded
    def cuMemUnmap(self, address: int, size: int) -> tuple[CUresult]:
        if address not in self.maps or self.maps[address].handle.size != size:
            return (INVALID,)
        self.maps.pop(address).bytes.close()
        return (OK,)

    @recorded
    def cuMemAddressFree(self, address: int, size: int) -> tuple[CUresult]:
        return (OK if self.ranges.pop(address, 0) == size else INVALID,)

    # copies and the checksum kernel

    @recorded
    def cuMemcpyDtoH(self, to: int, start: int, nbytes: int) -> tuple[CUresult]:
        ctypes.memmove(to, self._load(start, nbytes), nbytes)
        return (OK,)

    @recorded
    def cuMemcpyDtoHAsync(self, to: int, start: int, nbytes: int, stream: int) -> tuple[CUresult]:
        if stream != 7:
            return (INVALID,)
        ctypes.memmove(to, bytes(self.scratch[start][:nbytes]), nbytes)
        return (OK,)

    @recorded
    def cuMemAlloc(self, size: int) -> tuple[CUresult, int]:
        self.next += 1 << 32
        self.scratch[self.next] = bytearray(size)
        return OK, self.next

    @recorded
    def cuModuleLoadData(self, image: bytes) -> tuple[CUresult, bytes | None]:
        return (OK, image) if image.endswith(b"\0") else (INVALID, None)

    @recorded
    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[CUresult, str | None]:
        return (OK, name.decode()) if b".visible .entry " + name + b"(" in module else (INVALID, None)

    @recorded
    def cuStreamCreate(self, flags: int) -> tuple[CUresult, int]:
        return OK, 7

    @recorded
    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        return (OK if stream == 7 else INVALID,)

    @recorded
    def cuLaunchKernel(self, kernel: str, blocks: int, *rest: Any) -> tuple[CUresult]:
        *_, stream, (values, kinds), extra = rest
        start, nbytes, chunk, found = values
        if (kernel, stream, kinds, extra) != ("sum64", 7, (ctypes.c_uint64,) * 4, 0):
            return (INVALID,)
        sizes = [min(chunk, nbytes - first) for first in range(0, nbytes, chunk)]
        if blocks != len(sizes):
            return (INVALID,)
        sums = [sum64(self._load(start + at * chunk, size)) for at, size in enumerate(sizes)]
        self.scratch[found][: 8 * len(sums)] = struct.pack(f"<{len(sums)}Q", *sums)
        return (OK,)

    def _opened(self, fd: int, size: int, device: int, *, imported: bool) -> FakeHandle:
        handle = FakeHandle(fd, size, device, imported)
        self.handles.append(handle)
        return handle

    def _load(self, address: int, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            mapped, at = self._find(address + len(data))
            assert mapped.access, "read of memory without access"
            data += mapped.bytes[at : at + nbytes - len(data)]
        return data

    def _find(self, address: int) -> tuple[FakeMap, int]:
        for start, mapped in self.maps.items():
            if start <= address < start + mapped.handle.size:
                return mapped, address - start
        raise AssertionError(f"nothing is mapped at {address:#x}")
