"""Processor cores for engines that stand side by side: each its own, so that one which looks for requests all the time
is in nobody's way. Linux."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def order(cpus: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Numbers of processors, those that share a core side by side."""

    def together(cpu: int) -> int:
        file = root / f"cpu{cpu}" / "topology" / "core_cpus_list"
        try:
            return int(file.read_text().replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            return cpu

    return sorted(cpus, key=lambda cpu: (together(cpu), cpu))


def shares(engines: int, cpus: Sequence[int], ranks: int = 1) -> list[tuple[int, ...]]:
    """As many for each engine, in the order given, an even number; the last share is for whoever asks them. Empty where
    there are too few: each of the `ranks` looks for requests on one, and HTTP is served on another."""
    each = len(cpus) // (engines + 1)
    each -= each % 2
    if each < ranks + 1:
        return []
    return [tuple(cpus[at * each : (at + 1) * each]) for at in range(engines)] + [tuple(cpus[engines * each :])]


def pin(pids: Sequence[int], cpus: Iterable[int]) -> None:
    """All threads that these processes have now; what they start later inherits it. Raises OSError for processors that
    are not there, or somebody else's process; one that has ended is passed over."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cpus)
