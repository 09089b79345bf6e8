"""Attaching a sealed 2 GiB set of about 600 tensors, as a real server does it after its predecessor's SIGKILL.

The times are the server's own phases: agent's answer -> descriptors fetched -> manifest read and checked -> regions
mapped -> parameters bound -> sample of checksums compared. Beside it: the fill that read the checkpoint, and what
touching every page of the set costs in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, median
from benchmarks.rig import rig

if TYPE_CHECKING:
    from benchmarks.rig import Rig

TOUCH = """
import json, os, sys, time
from ling_api.memory.memfd import MemfdMemory
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
sizes = [os.fstat(fd).st_size for fd in fds]
began = time.perf_counter()
mapping = MemfdMemory().map(fds, sizes, writable=False)
mapped = time.perf_counter()
mapping.buffer(0, mapping.size)[::4096].tobytes()  # one byte of every page
print(json.dumps([(mapped - began) * 1e3, (time.perf_counter() - mapped) * 1e3, sum(sizes)]))
"""


def run(runs: int, preset: str = "2g") -> list[Figure]:
    """The figures, medians of `runs` attaches."""
    with rig(preset) as slot:
        filled = slot.phases()
        attaches, touches = [], []
        for _ in range(runs):
            slot.settled()
            before = slot.server_pid("one")
            slot.kill_server()
            slot.first_token()
            assert slot.server_pid("one") != before
            attaches.append(slot.phases())
            touches.append(touch(slot))
    fill = filled["loaded"] - filled["stored"]

    def span(name: str, first: str, last: str, most: float | None = None) -> Figure:
        return median(f"attach_{preset}_{name}", "ms", [each[last] - each[first] for each in attaches], most=most)

    bound = span("granted_to_bound", "answered", "bound", 100)
    return [
        Figure(name=f"attach_{preset}_bytes", value=touches[0][2] / (1 << 20), unit="MiB"),
        span("map_regions", "read", "mapped", 10),
        bound,
        span("fetch_descriptors", "answered", "fetched"),
        span("read_manifest", "fetched", "read"),
        span("bind_parameters", "mapped", "bound"),
        span("check_sample", "bound", "checked"),
        median(f"attach_{preset}_open_model", "ms", [each["opened"] for each in attaches]),
        median(f"attach_{preset}_touch_every_page", "ms", [each[1] for each in touches]),
        Figure(name=f"fill_{preset}_read_checkpoint", value=fill, unit="ms"),
        Figure(name=f"fill_{preset}_populate", value=filled["stored"] - filled["filling"], unit="ms"),
        Figure(name=f"attach_{preset}_faster_than_fill", value=fill / bound.value, unit="times"),
    ]


def touch(slot: Rig) -> tuple[float, float, float]:
    """(ms to map, ms to touch every page, bytes) of the keeper's regions in a fresh process."""
    folder = Path(f"/proc/{slot.processes['keeper'].pid}/fd")
    regions = [str(path) for path in sorted(folder.iterdir()) if path.readlink().name.startswith("memfd:ling-region")]
    out = subprocess.run([sys.executable, "-c", TOUCH, *regions], check=True, capture_output=True).stdout
    mapped, touched, nbytes = json.loads(out)
    return mapped, touched, nbytes
