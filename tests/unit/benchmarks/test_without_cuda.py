"""Whether agent and keeper have anything of CUDA in them, with stand-ins for the processes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks.gpu.endurance import without_cuda
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.report import Report
from benchmarks.gpu.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

MAPS_IT = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"


@pytest.mark.parametrize(("file", "ok"), [("libcuda.so.1", False), ("libc.so", True)])
def test_a_holder_with_a_cuda_library_is_named(tmp_path: Path, file: str, ok: bool) -> None:
    library = tmp_path / file
    library.write_bytes(b"x")
    report = Report(path=tmp_path / "experiment.json", machine={})
    lab = Lab(out=tmp_path, work=tmp_path / "work", cpu=True)
    stage = Stage(lab=lab, report=report, args=argparse.Namespace(), model=tmp_path, shape=tmp_path)
    argv = [sys.executable, "-S", "-c", MAPS_IT, str(library)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is mapped
        lab.processes["keeper-one"] = process
        without_cuda(stage)
        process.communicate(b"\n")
    (row,) = report.rows
    assert row["ok"] is ok
    assert row["value"] == (0 if ok else ["keeper-one"])
