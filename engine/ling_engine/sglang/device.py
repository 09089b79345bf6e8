"""What this machine's first GPU is, found out by one short process: the asker itself stays clear of CUDA.

A process that has called the driver's `cuInit` cannot fork children that use the GPU, so the zygote must not.
`python -m ling_engine.sglang.device` prints the facts as JSON, or null where there is no GPU; with a number of GPUs,
the free bytes of the one that has least.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ling_api.errors import DeviceError

from .describe import Device

_PATIENCE_S = 60.0
# names of torch.cuda.get_device_properties -> numbers of the driver's CUdevice_attribute
_ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "warp_size": 10,
    "max_threads_per_block": 1,
    "max_threads_per_multi_processor": 39,
    "regs_per_multiprocessor": 82,
    "shared_memory_per_block": 8,
    "shared_memory_per_block_optin": 97,
    "shared_memory_per_multiprocessor": 81,
    "L2_cache_size": 38,
    "is_integrated": 18,
    "is_multi_gpu_board": 84,
    "pci_bus_id": 33,
    "pci_device_id": 34,
    "pci_domain_id": 50,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of the first visible GPU. `properties` are those that torch.cuda.get_device_properties gives.

    `uuids` are of all visible GPUs, in the order in which ranks take them.
    """

    count: int
    properties: dict[str, Any]
    uuids: tuple[str, ...] = ()

    @property
    def memory(self) -> int:
        """Bytes of one GPU."""
        return int(self.properties["total_memory"])

    @property
    def capability(self) -> tuple[int, int]:
        return self.properties["major"], self.properties["minor"]


def facts() -> Facts | None:
    """None: no driver, or no GPU. Raises DeviceError when the driver answers with an error."""
    asked = subprocess.run(
        [sys.executable, "-m", "ling_engine.sglang.device"], capture_output=True, text=True, timeout=_PATIENCE_S
    )
    if asked.returncode:
        raise DeviceError(f"the GPU's driver cannot be asked: {asked.stderr.strip()[-500:]}")
    found = json.loads(asked.stdout)
    if not found:
        return None
    return Facts(count=found["count"], properties=found["properties"], uuids=tuple(found["uuids"]))


def described(found: Facts | None) -> Device:
    """As identities and recipes name it."""
    return Device(capability=found.capability if found else None, isa=platform.machine())


def visible() -> bool:
    """Whether a driver is here at all; costs nothing."""
    return os.path.exists("/dev/nvidiactl")  # noqa: PTH110


def free(gpus: int) -> int:
    """Bytes that are free on the GPU that has least, of the first `gpus`; of the host's memory where there is none."""
    if not visible():
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    asked = [sys.executable, "-m", "ling_engine.sglang.device", str(gpus)]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    return int(json.loads(told.stdout))


def initialized() -> bool:
    """Whether this very process has called `cuInit`. Calls nothing that would."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def _ask() -> dict[str, Any] | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) in _NO_GPU:
        return None
    _check(driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    if not count.value:
        return None
    device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    _check(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    _check(driver.cuDeviceTotalMem_v2(ctypes.byref(size), device), "cuDeviceTotalMem")
    _check(driver.cuDeviceGetName(name, 256, device), "cuDeviceGetName")
    properties: dict[str, Any] = {"name": name.value.decode(), "total_memory": size.value, "gcnArchName": ""}
    for key, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        _check(driver.cuDeviceGetAttribute(ctypes.byref(value), number, device), f"cuDeviceGetAttribute({key})")
        properties[key] = value.value
    return {"count": count.value, "properties": properties, "uuids": [_uuid(driver, n) for n in range(count.value)]}


def _uuid(driver: ctypes.CDLL, number: int) -> str:
    device, raw = ctypes.c_int(), ctypes.create_string_buffer(16)
    _check(driver.cuDeviceGet(ctypes.byref(device), number), "cuDeviceGet")
    _check(driver.cuDeviceGetUuid_v2(raw, device), "cuDeviceGetUuid")
    return f"GPU-{uuid.UUID(bytes=raw.raw)}"


def _free(gpus: int) -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    _check(driver.cuInit(0), "cuInit")
    least = []
    for number in range(gpus):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        _check(driver.cuDeviceGet(ctypes.byref(device), number), "cuDeviceGet")
        _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        _check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        size, total = ctypes.c_size_t(), ctypes.c_size_t()
        _check(driver.cuMemGetInfo_v2(ctypes.byref(size), ctypes.byref(total)), "cuMemGetInfo")
        least.append(size.value)
    return min(least)


_NO_GPU = (100, 34)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY


def _check(code: int, call: str) -> None:
    if code:
        raise SystemExit(f"{call} answered {code}")


if __name__ == "__main__":
    print(json.dumps(_free(int(sys.argv[1])) if sys.argv[1:] else _ask()))  # noqa: T201
