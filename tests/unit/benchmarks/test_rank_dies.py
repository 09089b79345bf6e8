"""How soon a rank's death is known, with stand-ins for the processes: counted from the kernel's word on."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks.gpu.endurance import rank_dies
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.report import Report
from benchmarks.gpu.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNTIL_GONE = "import os, select, sys; select.select([os.pidfd_open(int(sys.argv[1]))], [], [])"


class Slot:
    """A server that ends when its rank does, and what the agent says of it."""

    def __init__(self) -> None:
        self.rank = subprocess.Popen(["sleep", "60"])
        self.serving = subprocess.Popen([sys.executable, "-S", "-c", UNTIL_GONE, str(self.rank.pid)])

    def server(self, pod: str) -> int:
        return self.serving.pid

    def ranks(self, pod: str) -> list[int]:
        return [self.rank.pid]

    def engine_status(self, pod: str) -> dict[str, str]:
        return {"role": "active" if self.rank.poll() is None else "starting"}


@pytest.fixture
def slot() -> Iterator[Slot]:
    slot = Slot()
    yield slot
    for process in (slot.rank, slot.serving):
        process.kill()
        process.wait()


def test_server_and_agent_are_timed_from_the_ranks_end(slot: Slot, tmp_path: Path) -> None:
    report = Report(path=tmp_path / "experiment.json", machine={})
    lab = Lab(out=tmp_path, work=tmp_path / "work", cpu=True)
    stage = Stage(lab=lab, report=report, args=argparse.Namespace(), model=tmp_path, shape=tmp_path)
    rank_dies(stage, slot, "one")  # type: ignore[arg-type]
    found = {row["name"]: row["value"] for row in report.rows}
    assert set(found) == {"a rank's death to the server's end, ms", "a rank's death to the agent's word, ms"}
    assert all(0 <= took < 10_000 for took in found.values())
