"""SGLang on weights of a slot, on a real GPU: equal to SGLang from disk, broken bits found, nothing left at the end.

A few minutes with a filled JIT cache (SGLANG_CACHE_DIR); the first time on a machine SGLang compiles for five more. The
checkpoints are made here. `python -m benchmarks.gpu.experiment` measures the rest.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SECONDS = 1200
pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Everything that was compared, in one run: starting engines is what takes the time."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("needs SGLang in this environment")
    out = tmp_path_factory.mktemp("out")
    argv = [sys.executable, "-m", "benchmarks.gpu.experiment", "--out", str(out), "--work", str(out / "work")]
    argv += ["--parts", "models,equal,full,bits,canary,deaths,apart", "--budget", str(SECONDS), "--patience", "500"]
    models = Path(os.environ.get("LING_CACHE", "/dev/shm")) / "ling-models"
    done = subprocess.run([*argv, "--models", str(models)], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    print(done.stdout)
    found: list[dict[str, Any]] = json.loads((out / "experiment.json").read_text())["rows"]
    yield found


@pytest.mark.parametrize("mode", ["None", "NEXTN", "DSPARK"])
def test_filling_and_attached_engines_answer_as_sglang_from_disk(rows: list[dict[str, Any]], mode: str) -> None:
    judged = {row["name"]: row["ok"] for row in rows if row["ok"] is not None}
    pairs = [(one, what) for one in ("filling", "attached") for what in ("answers", "rounds")]
    wanted = [f"{mode} {one} and disk-loaded: equal {what}" for one, what in pairs]
    wanted += [f"{mode} token pools", f"{mode} accept length"]
    assert {name: judged.get(name) for name in wanted} == dict.fromkeys(wanted, True)


BROKEN = (
    "flipped bits",
    "after a flipped",
    "NEXTN with a zeroed",
    "death of",
    "a rank's death",
    "filler killed",
    "own PID",
    *(f"{mode} a request to the end" for mode in ("None", "NEXTN", "DSPARK")),
    "GPU MiB left",
)


@pytest.mark.parametrize("start", BROKEN)
def test_what_breaks_is_noticed_and_mended(rows: list[dict[str, Any]], start: str) -> None:
    judged = [row for row in rows if row["name"].startswith(start) and row["ok"] is not None]
    assert judged, f"no row {start!r}: {[row['name'] for row in rows]}"
    assert [row for row in judged if not row["ok"]] == []
