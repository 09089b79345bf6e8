"""Parsers of what comes in by sockets: the kept corpus, and a short search for more with atheris."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.targets import CORPUS, TARGETS

ROOT = Path(__file__).parents[2]
SECONDS = 2


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused_in_order(name: str) -> None:
    inputs = sorted((Path(CORPUS) / name).iterdir())
    assert inputs
    for path in inputs:
        data = path.read_bytes()
        TARGETS[name](data)
        TARGETS[name](data[: len(data) // 2])


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (Python 3.12 only)")
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_search_finds_nothing(name: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    rooms = os.pathsep.join(str(ROOT / room) for room in ("api", "operator", "nodeagent", "engine", "bench", "."))
    flags = (f"-max_total_time={SECONDS}", "-max_len=4096", f"-artifact_prefix={tmp_path}/")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", name, *flags],
        env={**os.environ, "PYTHONPATH": rooms, "LING_FUZZ_NEW": str(new)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    crashes = [path.read_bytes() for path in tmp_path.glob("crash-*")]
    assert done.returncode == 0, f"{crashes}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
