"""SIGTERM while the launcher is still being loaded ends it: for PID 1 without a handler the kernel drops the signal."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import PYTHONPATH

# the signal comes with the first look for a module that the launcher loads
CODE = """
import os, signal, sys
class Told:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]: os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Told())
from ling_engine.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("module", ["asyncio", "grpc"])
@pytest.mark.parametrize("command", ["run", "fill"])
def test_a_launcher_that_is_told_while_it_loads_ends_by_its_own_hand(command: str, module: str, tmp_path: Path) -> None:
    flags = ["--model", str(tmp_path), "--revision", "0123abcd", "--run-dir", str(tmp_path), "--probe-port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, command, *flags],
        env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 143, done.stderr  # -15 would be the kernel's default, which PID 1 does not have
