"""`make try`: the real programs with the reference runtime, from a checkpoint to a table."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import ROOT

pytestmark = pytest.mark.integration


def test_the_spine_holds_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "hack.spine", "--preset", "tiny"],
        cwd=ROOT, env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = dict(re.findall(r"^  (\S.*?) {2,}(.+)$", done.stdout, re.MULTILINE))
    assert figures["requests refused"] == "0"
    assert int(figures["requests failed (in flight in the killed server)"]) <= 3, "one a client at most"
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path) in command(pid)]


def command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
