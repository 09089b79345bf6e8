"""The CUDA driver API as far as we use it: one device, its primary context, every call checked.

The primary context is the one that torch uses, so addresses mean the same to both; it is made when it is not there yet
(about 0.2 s) and lives until the process ends. Calls may come from any thread: each makes the context current for
itself. An error names what we were doing, the driver's own name of the error, and what to do.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_LOST: Final = "this process's context is lost and nothing it maps can be used any more: end the process"
_FAULTY: Final = "the GPU or its link failed: end the process, drain the node and look for Xid lines in its kernel log"
_DRIVER: Final = "install a driver that is at least as new as the CUDA release in this image"
_ADVICE: Final = {
    "CUDA_ERROR_OUT_OF_MEMORY": (
        "the GPU's memory is full: see nvidia-smi, and `ling-nodeagent status` for weights that no process shows"
    ),
    "CUDA_ERROR_NO_DEVICE": "no GPU is visible here: give the container one, or correct CUDA_VISIBLE_DEVICES",
    "CUDA_ERROR_INVALID_DEVICE": "no such GPU here: give an ordinal below the number of visible GPUs, or a UUID",
    "CUDA_ERROR_INVALID_VALUE": "a descriptor is no memory of a GPU, or a size is not the region's",
    "CUDA_ERROR_INVALID_HANDLE": "the descriptor is no memory of a GPU",
    "CUDA_ERROR_UNKNOWN": "the driver gives no reason; when importing, the descriptor is no memory of a GPU",
    "CUDA_ERROR_OPERATING_SYSTEM": (
        "the kernel refused: a PID namespace needs its own /proc; is the descriptor limit (ulimit -n) reached?"
    ),
    "CUDA_ERROR_NOT_SUPPORTED": (
        "a region has another size than stated, or this GPU or driver cannot share memory by descriptor"
    ),
    "CUDA_ERROR_NOT_PERMITTED": "the container may not do this: see the device files that it was given",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": _DRIVER,
    "CUDA_ERROR_SYSTEM_NOT_READY": "the node's fabric manager or driver is not up: wait for it, then start again",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": _DRIVER,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the GPU is older than compute capability 8.0: weights cannot be checked on it",
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"a kernel read what is not mapped or wrote to read-only weights; {_LOST}",
    "CUDA_ERROR_LAUNCH_FAILED": _LOST,
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": _LOST,
    "CUDA_ERROR_ECC_UNCORRECTABLE": _FAULTY,
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": _FAULTY,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": _FAULTY,
}


class Device:
    """One GPU. `ordinal` as this process counts them (torch's `cuda:N`), `uuid` the same for every process."""

    def __init__(self, device: int | str, driver: ModuleType | Any = None) -> None:
        """`device`: ordinal or UUID. Raises DeviceError: no cuda-bindings, no driver, no such GPU."""
        self.api: Any = driver or _bindings()
        try:
            self.call("start CUDA", "cuInit", 0)
        except RuntimeError as error:  # cuda-bindings: no libcuda.so.1
            raise DeviceError(f"cannot start CUDA: {error}; this needs an NVIDIA driver and a GPU") from error
        self.ordinal = device if isinstance(device, int) else self._with_uuid(device)
        handle = self.call(f"use GPU {self.ordinal}", "cuDeviceGet", self.ordinal)
        self.uuid = self._uuid(handle)
        self._context = self.call(f"open a context on {self}", "cuDevicePrimaryCtxRetain", handle)

    @property
    def name(self) -> str:
        """As torch writes it."""
        return f"cuda:{self.ordinal}"

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid})"

    def call(self, doing: str, function: str, *args: object) -> Any:
        """The function's result, if it has one. Raises DeviceError: "cannot <doing>: <name>; <what to do>"."""
        error, *values = getattr(self.api, function)(*args)
        if int(error):
            advice = _ADVICE.get(error.name, "see this error in the CUDA driver API's manual")
            raise DeviceError(f"cannot {doing}: {error.name}; {advice}")
        return values[0] if values else None

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The primary context is this thread's meanwhile. Raises DeviceError."""
        self.call(f"use the context of {self}", "cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self.api.cuCtxPopCurrent()

    def settle(self) -> None:
        """Waits until all work that this process queued on the device is done. Raises DeviceError."""
        self.call(f"finish the work on {self}", "cuCtxSynchronize")

    def _with_uuid(self, wanted: str) -> int:
        count = self.call("count the GPUs", "cuDeviceGetCount")
        found = [self._uuid(self.call(f"use GPU {n}", "cuDeviceGet", n)) for n in range(count)]
        if wanted not in found:
            raise DeviceError(f"no GPU {wanted!r} is visible here; there are {', '.join(found) or 'none'}")
        return found.index(wanted)

    def _uuid(self, handle: object) -> str:
        raw = self.call("read a GPU's UUID", "cuDeviceGetUuid", handle)
        return f"GPU-{uuid.UUID(bytes=bytes(raw.bytes))}"


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"memory of kind cuda needs the package cuda-bindings ({error}); install ling[cuda] in this image"
        ) from error
    return driver
