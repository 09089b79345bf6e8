"""What it takes to make, seal, attach and check weights on a GPU: `python -m benchmarks.cuda_attach [GIB ...]`.

For each size (60 by default; one that does not fit is told and left out): regions of 4 GiB made and filled with random
bytes; write access given up; then attached by fresh processes, which hold no torch, and again and again in one process.
Import, map and access are the driver's three steps, `all` is from the descriptors to readable addresses, without the
context (0.2 s, once a process). One line a figure, and the same as JSON in build/cuda-attach.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / room) for room in ("api", "")]

from benchmarks.figures import Figure, median, write  # noqa: E402
from tests.support.cuda_process import attach, identity, layout_of, process  # noqa: E402

from ling_api import checks, fdpass  # noqa: E402
from ling_api.errors import DeviceError  # noqa: E402
from ling_api.manifest import Manifest  # noqa: E402
from ling_api.memory.cuda import CudaMemory  # noqa: E402
from ling_api.tensors import tensor_at  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
FRESH, RUNS = 3, 10
STEPS = ("import", "reserve", "map", "access", "all")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the milliseconds."""
    began = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - began) * 1000


def measure(gib: int) -> list[Figure]:
    """Every figure of one size; nothing stays allocated. Raises DeviceError when it does not fit."""
    import torch

    memory = CudaMemory()
    layout = layout_of([f"layer.{number}" for number in range(gib)], GIB, memory)
    name = f"{gib}g"
    fds: list[int] = []
    try:
        _, create = timed(lambda: fds.extend(memory.create(size) for size in layout.sizes))
        mapping = memory.map(fds, layout.sizes, writable=True)
        figures = [Figure(name=f"{name}-create-and-export", value=create, unit="ms")]
        figures += [
            Figure(name=f"{name}-writable-{step}", value=mapping.phases[step], unit="ms") for step in STEPS[:-1]
        ]
        for entry in layout.tensors:
            tensor_at(mapping, entry).view(torch.int64).random_()
        torch.cuda.synchronize()
        _, flip = timed(lambda: mapping.make_read_only(fds))
        figures.append(Figure(name=f"{name}-give-up-write-access", value=flip, unit="ms"))
        regions = checks.checksum_regions(mapping, layout.sizes)
        passes = [timed(lambda: checks.checksum_regions(mapping, layout.sizes))[1] for _ in range(RUNS)]
        figures.append(median(f"{name}-checksum-pass", "ms", passes))
        manifest = Manifest(identity=identity(), rank=0, kind="cuda", tensors=layout.tensors, regions=regions)
        mapping.close()
        return figures + attached(name, manifest, fds) + once_more(name, memory, manifest, fds)
    finally:
        fdpass.close_all(fds)


def attached(name: str, manifest: Manifest, fds: list[int]) -> list[Figure]:
    """By fresh processes: everything is the first of its kind there."""
    rows: list[dict[str, float]] = []
    for _ in range(FRESH):
        with process("attach") as other:
            done, _ = other.ask("set", fds, manifest=manifest.to_bytes().decode())
            again, _ = other.ask("again")
            closed, _ = other.ask("close")
            rows.append(
                {**done["ms"], "check-and-load": done["verify"], "check": again["verify"], "unmap": closed["ms"]}
            )
    most = {"all": 10.0} if manifest.nbytes <= 60 * GIB else {}
    return [median(f"{name}-fresh-{step}", "ms", [row[step] for row in rows], most=most.get(step)) for step in rows[0]]


def once_more(name: str, memory: CudaMemory, manifest: Manifest, fds: list[int]) -> list[Figure]:
    """In one process, again and again."""
    rows: list[dict[str, float]] = []
    for _ in range(RUNS):
        mapping, ms = attach(memory, manifest, fds)
        _, ms["unmap"] = timed(mapping.close)
        rows.append(ms)
    return [median(f"{name}-again-{step}", "ms", [row[step] for row in rows]) for step in rows[0]]


def machine() -> dict[str, object]:
    """The GPU and its driver, as nvidia-smi names them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return {"gpu": done.stdout.strip()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gib", type=int, nargs="*", default=[60], help="sizes in GiB")
    sizes = parser.parse_args().gib
    if min(sizes) < 1:
        parser.error(f"a size of {min(sizes)} GiB; write whole GiB, at least 1")
    figures: list[Figure] = []
    for gib in sizes:
        try:
            figures += measure(gib)
        except DeviceError as error:
            print(f"# {gib} GiB: not measured: {error}")
    if not figures:
        return 1
    for figure in figures:
        print(figure.line())
    write(ROOT / "build" / "cuda-attach.json", figures, machine())
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
