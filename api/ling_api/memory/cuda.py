"""GPU memory: regions are the driver's physical allocations, shared as POSIX descriptors, mapped back to back.

A descriptor alone keeps a region: holders (agent, keeper, launcher) need no CUDA, and a region is freed when the last
descriptor and mapping are gone. Who imported a region cannot export it again, so a descriptor that is to be given back
must have been kept. Access is a property of each mapping: the filler gives up writing in place, and captured graphs and
tensors stay right. A later write fails in the writer alone, whose context is then lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import DeviceError
from ling_api.memory.cuda_driver import Device
from ling_api.memory.cuda_sums import ChunkSums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MIB: Final = 1 << 20


class CudaMemory:
    """Regions on one GPU, for a rank. Needs the package cuda-bindings (extra `cuda`) and a driver; imports no torch."""

    kind = "cuda"
    max_region = 4 << 30  # a region costs about 0.1 ms to attach, whatever its size

    def __init__(self, device: int | str = 0, *, driver: Any = None) -> None:
        """`device`: the GPU's ordinal in this process or its UUID; its primary context is used, or made.

        `driver` stands in for cuda.bindings.driver. Raises DeviceError.
        """
        self._device = Device(device, driver)
        self._sums = ChunkSums(self._device)
        api = self._device.api
        self._wanted = api.CUmemAllocationProp()
        self._wanted.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._wanted.location = _location(self._device)
        self._wanted.requestedHandleTypes = _descriptor_type(api)
        self.granularity: int = self._device.call(
            f"ask {self._device} for its granularity",
            "cuMemGetAllocationGranularity",
            self._wanted,
            api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        )

    @property
    def device(self) -> str:
        """`cuda:N`, as this process counts."""
        return self._device.name

    @property
    def uuid(self) -> str:
        """The GPU's, the same for every process."""
        return self._device.uuid

    def create(self, size: int) -> int:
        """A region of `size` bytes, allocated at once; the descriptor is the caller's. Raises DeviceError."""
        if size <= 0 or size % self.granularity:
            raise DeviceError(f"a region of {size} bytes; sizes are multiples of {self.granularity}")
        device = self._device
        with device.current():
            handle = device.call(f"allocate {size // _MIB} MiB on {device}", "cuMemCreate", size, self._wanted, 0)
            try:
                kind = _descriptor_type(device.api)
                fd = int(device.call("share a region", "cuMemExportToShareableHandle", handle, kind, 0))
            finally:
                device.api.cuMemRelease(handle)  # the descriptor keeps the memory
        os.set_inheritable(fd, False)
        return fd

    def map(self, fds: Sequence[int], sizes: Sequence[int], *, writable: bool) -> CudaMapping:
        """See ling_api.memory.base. Raises DeviceError, also for memory of another GPU.

        The mapping's `phases` tell what it took: ms of `import`, `reserve`, `map`, `access`.
        """
        if len(fds) != len(sizes) or not fds:
            raise DeviceError(f"{len(fds)} descriptors for {len(sizes)} regions")
        room = self.max_region if writable else 0
        began = time.perf_counter()
        with self._device.current(), contextlib.ExitStack() as handles:
            imported = [handles.enter_context(_imported(self._device, fd)) for fd in fds]
            at = time.perf_counter()
            mapping = CudaMapping(self._device, self._sums, reserve=sum(sizes) + room, writable=writable)
            mapping.phases["import"] = (at - began) * 1000
            try:
                mapping.append(imported, sizes)
            except BaseException:
                mapping.abandon()
                raise
        return mapping


class CudaMapping:
    """Regions back to back in one reserved range; see ling_api.memory.base.Mapping."""

    def __init__(self, device: Device, sums: ChunkSums, *, reserve: int, writable: bool) -> None:
        """Reserves addresses only. The device's context is current. Raises DeviceError."""
        self.device = device.name
        self.phases: dict[str, float] = {}
        self._device = device
        self._sums = sums
        self._reserved = reserve
        self._sizes: list[int] = []
        self._writable = writable
        doing = f"reserve {reserve // _MIB} MiB of addresses"
        began = time.perf_counter()
        self.address = int(device.call(doing, "cuMemAddressReserve", reserve, 0, 0, 0))
        self.phases["reserve"] = (time.perf_counter() - began) * 1000

    @property
    def size(self) -> int:
        """Bytes of all regions."""
        return sum(self._sizes)

    def append(self, handles: Sequence[object], sizes: Sequence[int]) -> None:
        """Maps imported regions behind the last and allows access to all of them at once. Raises DeviceError."""
        began = time.perf_counter()
        start = self.size
        for handle, size in zip(handles, sizes, strict=True):
            if size > self._reserved - self.size:
                raise DeviceError(f"no addresses left for {size} more bytes behind {self.size} of {self._reserved}")
            doing = f"map region {len(self._sizes)} with {size // _MIB} MiB"
            self._device.call(doing, "cuMemMap", self.address + self.size, size, 0, handle, 0)
            self._sizes.append(size)
        mapped = time.perf_counter()
        self._allow(start, self.size - start)
        self.phases["map"] = (mapped - began) * 1000
        self.phases["access"] = (time.perf_counter() - mapped) * 1000

    def extend(self, fd: int, size: int) -> None:
        """A tail region of the filler. Raises DeviceError, also after `make_read_only`."""
        self._check_open()
        if not self._writable:
            raise DeviceError("only a writable mapping can be extended")
        known = len(self._sizes)
        with self._device.current(), _imported(self._device, fd) as handle:
            try:
                self.append([handle], [size])
            except BaseException:
                if len(self._sizes) > known:
                    self._device.api.cuMemUnmap(self.address + self.size - size, self._sizes.pop())
                raise

    def make_read_only(self, fds: Sequence[int]) -> None:
        """Waits for queued work, then gives up write access in place. Raises DeviceError.

        The descriptors are counted only: those of a GPU's memory cannot be told apart, and access is not theirs.
        """
        self._check_open()
        if len(fds) != len(self._sizes):
            raise DeviceError(f"{len(fds)} descriptors for a mapping of {len(self._sizes)} regions")
        with self._device.current():
            self._device.settle()
            self._writable = False
            self._allow(0, self.size)

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        """A copy of the bytes, made after all queued work of a filler. Raises DeviceError."""
        self._check_inside(offset, nbytes)
        copy = bytearray(nbytes)
        if nbytes:
            with self._device.current():
                if self._writable:
                    self._device.settle()
                to = ctypes.addressof(ctypes.c_ubyte.from_buffer(copy))
                self._device.call("read weights back", "cuMemcpyDtoH", to, self.address + offset, nbytes)
        return memoryview(copy)

    def sums(self, offset: int, nbytes: int) -> list[int]:
        """The sum64 of every chunk from `offset` on, made by the device in one pass. Raises DeviceError."""
        self._check_inside(offset, nbytes)
        with self._device.current():
            if self._writable:
                self._device.settle()
            return self._sums.of(self.address + offset, nbytes)

    def close(self) -> None:
        """Waits for queued work, unmaps, gives the addresses back. Raises DeviceError, also the second time."""
        self._check_open()
        with self._device.current():
            try:
                self._device.settle()
            finally:
                self._unmap()

    def abandon(self) -> None:
        """Undoes what was mapped so far while another error is on its way."""
        with contextlib.suppress(DeviceError):
            self._unmap()

    def _unmap(self) -> None:
        """Everything is tried, whatever fails. Raises DeviceError."""
        at, reserved, sizes = self.address, self._reserved, self._sizes.copy()
        self._reserved = 0
        self._sizes.clear()
        with contextlib.ExitStack() as steps:
            steps.callback(self._device.call, "give addresses back", "cuMemAddressFree", at, reserved)
            for size in sizes:
                steps.callback(self._device.call, f"unmap {size // _MIB} MiB", "cuMemUnmap", at, size)
                at += size

    def _allow(self, offset: int, nbytes: int) -> None:
        flags = self._device.api.CUmemAccess_flags
        access = self._device.api.CUmemAccessDesc()
        access.location = _location(self._device)
        readable, both = flags.CU_MEM_ACCESS_FLAGS_PROT_READ, flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        access.flags = both if self._writable else readable
        doing = f"allow access to {nbytes // _MIB} MiB"
        self._device.call(doing, "cuMemSetAccess", self.address + offset, nbytes, [access], 1)

    def _check_inside(self, offset: int, nbytes: int) -> None:
        self._check_open()
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise DeviceError(f"bytes {offset} to {offset + nbytes} are not inside a mapping of {self.size}")

    def _check_open(self) -> None:
        if not self._reserved:
            raise DeviceError("the mapping is closed already")


@contextlib.contextmanager
def _imported(device: Device, fd: int) -> Iterator[object]:
    """The region behind a descriptor, until it is mapped: a mapping keeps the memory by itself. Raises DeviceError."""
    doing = f"import a region from descriptor {fd}"
    handle = device.call(doing, "cuMemImportFromShareableHandle", fd, _descriptor_type(device.api))
    try:
        where = device.call("ask where a region lies", "cuMemGetAllocationPropertiesFromHandle", handle).location
        if where.id != device.ordinal:
            found = f"cuda:{where.id}" if where.id >= 0 else "a GPU that this process does not see"
            raise DeviceError(f"descriptor {fd} is memory of {found}, not of {device}; the ranks are mixed up")
        yield handle
    finally:
        device.api.cuMemRelease(handle)


def _location(device: Device) -> Any:
    location = device.api.CUmemLocation()
    location.type = device.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device.ordinal
    return location


def _descriptor_type(api: Any) -> Any:
    return api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
