"""Flips single bits of sealed weights, as a broken holder could: `python -m benchmarks.gpu.flip --keeper PID`.

Takes the descriptors out of the keeper's process (needs root or ptrace rights), maps them writable, and for one tensor
of each kind flips a bit, runs the attach check, flips it back. `--leave ROLE` leaves a bit of that role's set flipped.
Prints JSON: kind -> whether the check found it and named the tensor, and the check's milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("api", "")]

from ling_api import checks  # noqa: E402
from ling_api.errors import AttachCheckFailed, DeviceError, LingError  # noqa: E402
from ling_api.manifest import CHUNK, Manifest  # noqa: E402
from ling_api.memory.cuda import CudaMapping, CudaMemory  # noqa: E402

if TYPE_CHECKING:
    from ling_api.manifest import TensorEntry

_PIDFD_GETFD = 438
KINDS = {
    "embedding": r"word_embeddings", "head": r"lm_head", "norm": r"layernorm|norm\.weight", "kda projection": r"qkvbfg",
    "convolution": r"conv1d", "decay": r"A_log|dt_bias", "mla": r"kv_b_proj|kv_a_proj", "router": r"gate\.weight",
    "router bias": r"expert_bias", "experts": r"w13_weight|w2_weight", "draft join": r"eh_proj|fc\.weight",
    "markov": r"markov", "output": r"o_proj",
}  # fmt: skip


def taken(pid: int, number: int) -> int:
    """A duplicate of a descriptor of another process."""
    pidfd = os.pidfd_open(pid)
    try:
        found = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, number, 0)
    finally:
        os.close(pidfd)
    if found < 0:
        raise OSError(ctypes.get_errno(), f"pidfd_getfd({pid}, {number})")
    return int(found)


def held(pid: int) -> tuple[list[Manifest], list[int]]:
    """The manifests and the region descriptors of a keeper, each in the order of their numbers."""
    manifests, regions = [], []
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda one: int(one.name)):
        with contextlib.suppress(OSError, LingError):
            target = str(entry.readlink())
            if "ling-manifest" in target:
                fd = taken(pid, int(entry.name))
                manifests.append(Manifest.from_bytes(os.pread(fd, os.fstat(fd).st_size, 0)))
            elif "nvidia" in target:
                regions.append(taken(pid, int(entry.name)))
    return manifests, regions


def mapped(memory: CudaMemory, manifest: Manifest, fds: list[int]) -> CudaMapping | None:
    """The set's regions, found by their first checksums, writable in one range."""
    chosen: list[int] = []
    for region in manifest.regions:
        for fd in fds:
            if fd in chosen:
                continue
            try:
                one = memory.map([fd], [region.size], writable=True)
            except DeviceError:
                continue
            same = one.sums(0, min(CHUNK, region.size)) == list(region.checksums[:1])
            one.close()
            if same:
                chosen.append(fd)
                break
        else:
            return None
    return memory.map(chosen, [region.size for region in manifest.regions], writable=True)


def flip(memory: CudaMemory, mapping: CudaMapping, offset: int) -> None:
    """Bit 3 of the byte."""
    byte = bytearray(mapping.buffer(offset, 1))
    byte[0] ^= 8
    data = (ctypes.c_ubyte * 1).from_buffer(byte)
    device = memory._device
    with device.current():
        device.call("write a byte", "cuMemcpyHtoD", mapping.address + offset, ctypes.addressof(data), 1)
        device.settle()


def one_of_each(manifest: Manifest) -> dict[str, TensorEntry]:
    found = {}
    for kind, pattern in KINDS.items():
        tensor = next((one for one in manifest.tensors if re.search(pattern, one.name)), None)
        if tensor is not None and tensor.nbytes:
            found[kind] = tensor
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keeper", type=int, required=True)
    parser.add_argument("--leave", default="")
    args = parser.parse_args()
    memory = CudaMemory()
    manifests, fds = held(args.keeper)
    told: dict[str, Any] = {"sets": len(manifests), "regions": len(fds), "kinds": {}}
    for manifest in manifests:
        role = manifest.identity.role
        mapping = mapped(memory, manifest, fds)
        if mapping is None:
            told["kinds"][role] = "its regions were not found among the keeper's descriptors"
            continue
        began = time.perf_counter()
        checks.verify(mapping, manifest)
        told[f"{role} check ms"] = round((time.perf_counter() - began) * 1000, 2)
        told[f"{role} GiB"] = round(manifest.nbytes / (1 << 30), 2)
        for kind, tensor in one_of_each(manifest).items():
            at = tensor.offset + tensor.nbytes // 2
            flip(memory, mapping, at)
            try:
                checks.verify(mapping, manifest)
                told["kinds"][f"{role} {kind}"] = "NOT FOUND"
            except AttachCheckFailed as error:
                told["kinds"][f"{role} {kind}"] = "found" if tensor.name in str(error) else f"found elsewhere: {error}"
            flip(memory, mapping, at)
        checks.verify(mapping, manifest)
        if role == args.leave:
            flip(memory, mapping, next(iter(one_of_each(manifest).values())).offset)
            told["left"] = role
        mapping.close()
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
