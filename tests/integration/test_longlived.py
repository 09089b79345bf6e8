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
AGAIN = """
import time, pytest
runs = []

@pytest.mark.flaky(reruns=1)
def test_one():
    runs.append(0)
    assert len(runs) == 2
    time.sleep(WORK)
"""


@pytest.mark.parametrize("scope", ["module", "session"])
@pytest.mark.parametrize(
    ("making", "ending", "work", "says"),
    [
        pytest.param(2.5, 2.5, 0, "1 passed", id="shared things take long"),
        pytest.param(0, 0, 30, "1 failed", id="the test takes long"),
        pytest.param(2.5, 0, 30, "1 failed", id="the test takes long, and what it shares does"),
    ],
)
def test_only_its_own_time_counts(
    tmp_path: Path, scope: str, making: float, ending: float, work: float, says: str
) -> None:
    text = SHARED.replace("SCOPE", scope).replace("MAKING", str(making))
    told = run(tmp_path, text.replace("ENDING", str(ending)).replace("WORK", str(work)), limit=2)
    assert says in told
    assert "error" not in told.splitlines()[-1]


@pytest.mark.parametrize(("work", "says"), [(0, "1 passed, 1 rerun"), (30, "1 failed, 1 rerun")], ids=["quick", "long"])
def test_a_run_that_is_not_the_first_is_limited_too(tmp_path: Path, work: float, says: str) -> None:
    assert says in run(tmp_path, AGAIN.replace("WORK", str(work)), limit=2)


def run(folder: Path, test: str, *, limit: int) -> str:
    """What pytest says of this test, whose own time is limited to so many seconds."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(f"[pytest]\ntimeout = {limit}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.longlived", "-p", "no:randomly", "."]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr
