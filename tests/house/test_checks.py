"""Linter, formatter, layers and types, as tests: so `make test` is one run with one closing line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CHECKS = {
    "ruff": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "layers": ["lint-imports"],
    "types": ["mypy"],
}


@pytest.mark.timeout(1800)  # the types alone take minutes of a busy core, without what was learnt before
@pytest.mark.parametrize("check", CHECKS)
def test_checker_is_content(check: str) -> None:
    command = [str(BIN / CHECKS[check][0]), *CHECKS[check][1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
