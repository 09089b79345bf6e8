"""Checksums made where the weights are: one kernel, one pass, one 64-bit sum a chunk (sum64.cu says which).

The kernel ships in the driver's own assembly: no compiler and no torch needed, and any GPU from Ampere on takes it. It
is loaded at the first use. Not to be used while a thread of this process captures a CUDA graph.
"""

from __future__ import annotations

import array
import ctypes
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import DeviceError
from ling_api.manifest import CHUNK, MAX_REGION

if TYPE_CHECKING:
    from ling_api.memory.cuda_driver import Device

KERNEL: Final = Path(__file__).with_name("sum64.ptx")
_IMAGE: Final = KERNEL.read_bytes() + b"\0"
_AT_ONCE: Final = MAX_REGION  # bytes a launch
_THREADS: Final = 256  # a block; as in sum64.cu
_UNIT: Final = 16  # bytes that a thread reads at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """The driver's objects; `sums` is device memory for one launch."""

    kernel: Any
    stream: Any
    sums: Any


class ChunkSums:
    """sum64 of chunks of one device's memory, on a stream of its own. What it loads stays until the process ends."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._loaded: _Loaded | None = None
        self._free = threading.Lock()  # the room for one launch's sums

    def of(self, address: int, nbytes: int) -> list[int]:
        """One sum for every 4 MiB from `address`, the last may be shorter. The context is current.

        Raises DeviceError, also for an address or a size that is no multiple of 16.
        """
        if address % _UNIT or nbytes % _UNIT:
            raise DeviceError(f"{nbytes} bytes at {address:#x} cannot be summed; both must be multiples of {_UNIT}")
        sums: list[int] = []
        with self._free:
            self._loaded = self._loaded or self._load()
            for start in range(0, nbytes, _AT_ONCE):
                sums += self._launch(self._loaded, address + start, min(_AT_ONCE, nbytes - start))
        return sums

    def _launch(self, loaded: _Loaded, address: int, nbytes: int) -> array.array[int]:
        call, stream = self._device.call, loaded.stream
        sums = array.array("Q", bytes(8 * -(-nbytes // CHUNK)))
        args = (address, nbytes, CHUNK, int(loaded.sums)), (ctypes.c_uint64,) * 4
        block = (_THREADS, 1, 1)
        call("start the checksum", "cuLaunchKernel", loaded.kernel, len(sums), 1, 1, *block, 0, stream, args, 0)
        to = sums.buffer_info()[0]
        call("read checksums back", "cuMemcpyDtoHAsync", to, loaded.sums, 8 * len(sums), stream)
        call("checksum the weights", "cuStreamSynchronize", stream)
        return sums

    def _load(self) -> _Loaded:
        call, flags = self._device.call, self._device.api.CUstream_flags
        module = call("load the checksum kernel", "cuModuleLoadData", _IMAGE)
        return _Loaded(
            kernel=call("find the checksum kernel", "cuModuleGetFunction", module, b"sum64"),
            stream=call("make a stream for checksums", "cuStreamCreate", flags.CU_STREAM_NON_BLOCKING),
            sums=call("make room for checksums", "cuMemAlloc", 8 * (_AT_ONCE // CHUNK)),
        )
