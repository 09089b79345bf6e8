"""What SGLang concludes from the GPU while it is imported: in a zygote, which has none, the same as elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


def test_a_zygote_holds_the_constants_of_a_process_that_asked_the_driver(tmp_path: Path) -> None:
    """One that differs means other kernels, or others to choose among: answers that part by rounding."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("needs SGLang in this environment")
    path = os.pathsep.join([*(str(ROOT / room) for room in ("api", "engine")), os.environ.get("PYTHONPATH", "")])
    own = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "ling_engine.sglang.architectures", "PYTHONPATH": path.strip(os.pathsep)}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.constants", name.split("-")[0], str(tmp_path / name)],
            cwd=ROOT, env=os.environ | own,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name in ("zygote", "driver", "driver-again")
    }  # fmt: skip
    ends = time.monotonic() + 250
    try:
        for name, process in started.items():
            _, said = process.communicate(timeout=max(ends - time.monotonic(), 1))
            assert process.returncode == 0, f"{name}: {said[-1500:]}"
    finally:
        for process in started.values():
            process.kill()
    held: dict[str, dict[str, str]] = {name: json.loads((tmp_path / name).read_text()) for name in started}
    drivers, again = held["driver"], held["driver-again"]
    names = drivers.keys() | held["zygote"].keys()
    lasting = {name for name in names if again.get(name) == drivers.get(name)}  # no time, pid, port
    assert len(lasting) > 3_000
    known = {"BS_LIST", "kda_gate_chunk_cumsum_vector_kernel"}  # a list of blocks, a kernel that is tuned among them
    assert known <= {name.removeprefix("sglang.kernels.ops.attention.fla.kda.") for name in lasting}
    others = {name: (held["zygote"].get(name), drivers.get(name)) for name in sorted(lasting)}
    assert {name: pair for name, pair in others.items() if pair[0] != pair[1]} == {}
