"""The clock of a test does not count what belongs to many tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = """
import time, pytest

@pytest.fixture(scope="SCOPE")
def shared():
    time.sleep(MAKING)
    yield
    time.sleep(ENDING)

def test_one(shared):
    time.sleep(WORK)
"""


@pytest.mark.parametrize("scope", ["module", "session"])
@pytest.mark.parametrize(
    ("making", "ending", "work", "says"),
    [
        pytest.param(1.5, 1.5, 0, "1 passed", id="shared things take long"),
        pytest.param(0, 0, 30, "1 failed", id="the test takes long"),
        pytest.param(1.5, 0, 30, "1 failed", id="the test takes long, and what it shares does"),
    ],
)
def test_only_its_own_time_counts(
    tmp_path: Path, scope: str, making: float, ending: float, work: float, says: str
) -> None:
    text = SHARED.replace("SCOPE", scope).replace("MAKING", str(making))
    (tmp_path / "test_it.py").write_text(text.replace("ENDING", str(ending)).replace("WORK", str(work)))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.longlived", "-p", "no:randomly", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert says in done.stdout, done.stdout + done.stderr
    assert "error" not in done.stdout.splitlines()[-1]
