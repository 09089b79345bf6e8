"""Checksums made where the weights are: one kernel, one pass, one 64-bit sum a chunk (sum64.cu says which).

The kernel ships in the driver's own assembly: no compiler and no torch needed, and any GPU from Ampere on takes it. It
is loaded at the first use. Not to be used while a thread of this process captures a CUDA graph.
"""

from __future__ import annotations

import array
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import DeviceError
from ling_api.manifest import CHUNK

if TYPE_CHECKING:
    from ling_api.memory.cuda_driver import Device

KERNEL: Final = Path(__file__).with_name("sum64.ptx")
_IMAGE: Final = KERNEL.read_bytes() + b"\0"
_THREADS: Final = 256  # a block; as in sum64.cu
_UNIT: Final = 16  # bytes that a thread reads at once


class ChunkSums:
    """sum64 of chunks of one device's memory, on a stream of its own."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loaded: tuple[Any, Any] | None = None

    def of(self, address: int, nbytes: int) -> list[int]:
        """One sum for every 4 MiB from `address`, the last may be shorter. The context is current.

        Raises DeviceError, also for an address or a size that is no multiple of 16.
        """
        if address % _UNIT or nbytes % _UNIT:
            raise DeviceError(f"{nbytes} bytes at {address:#x} cannot be summed; both must be multiples of {_UNIT}")
        if not nbytes:
            return []
        call = self._device.call
        sums = array.array("Q", bytes(8 * -(-nbytes // CHUNK)))
        kernel, stream = self._loaded or self._load()
        found = call("make room for checksums", "cuMemAlloc", 8 * len(sums))
        try:
            args = (address, nbytes, CHUNK, int(found)), (ctypes.c_uint64,) * 4
            block = (_THREADS, 1, 1)
            call("start the checksum", "cuLaunchKernel", kernel, len(sums), 1, 1, *block, 0, stream, args, 0)
            call("checksum the weights", "cuStreamSynchronize", stream)
            call("read checksums back", "cuMemcpyDtoH", sums.buffer_info()[0], found, 8 * len(sums))
        finally:
            self._device.api.cuMemFree(found)
        return sums.tolist()

    def _load(self) -> tuple[Any, Any]:
        api, call = self._device.api, self._device.call
        module = call("load the checksum kernel", "cuModuleLoadData", _IMAGE)
        kernel = call("find the checksum kernel", "cuModuleGetFunction", module, b"sum64")
        flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._loaded = kernel, call("make a stream for checksums", "cuStreamCreate", flags)
        return self._loaded
