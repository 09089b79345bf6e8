"""SGLang's own metrics, when `--enable-metrics` is among the extra arguments: gathered from all its processes.

prometheus_client chooses how values are kept when it is imported, which the zygote has done; so the choice is made
again here, before SGLang's processes are forked. Our own metrics were made before and stay in memory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

FLAG = "--enable-metrics"
_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Figures:
    """One folder of value files, the same for every server of a pod: what the last one left is removed."""

    def __init__(self, run_dir: Path) -> None:
        name = hashlib.sha256(str(run_dir).encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"ling-metrics-{name}"

    def begin(self) -> None:
        """From now on, what is made in this process and its forks is kept in files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700)
        os.environ[_VARIABLE] = str(self._folder)
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]

    def text(self) -> str:
        """Of all processes together, ours left out."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        lines = generate_latest(registry).decode().splitlines(keepends=True)
        return "".join(line for line in lines if not _name(line).startswith("ling_"))


def _name(line: str) -> str:
    words = line.split(" ", 3)
    return words[2] if line.startswith("#") and len(words) > 2 else line
