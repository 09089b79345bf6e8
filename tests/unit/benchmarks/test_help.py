"""Every benchmark that is a command says how it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMANDS = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for file in (ROOT / "benchmarks").rglob("*.py")
    if '__name__ == "__main__"' in file.read_text() or file.name == "__main__.py"
)


@pytest.mark.parametrize("module", COMMANDS)
def test_a_benchmark_says_how_it_is_called(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr


def test_there_are_benchmarks_at_all() -> None:
    assert "benchmarks.gpu.experiment" in COMMANDS
