"""Metrics of several processes beside ours. In a process of its own: how values are kept is chosen once for all."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.processes import PYTHONPATH

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import json, os, sys
from pathlib import Path
from ling_engine.metrics import ServerMetrics
from ling_engine.sglang.figures import Figures
ours = ServerMetrics()
ours.answered("/generate", 200)
figures = Figures(Path(sys.argv[1]))
figures.begin()
from prometheus_client import CollectorRegistry, Counter
def count(number):
    counter = Counter("sglang:num_requests", "x", ["model"], registry=CollectorRegistry())
    counter.labels("m").inc(number)
count(2)
if os.fork() == 0:
    count(3)
    os._exit(0)
os.wait()
ours.answered("/v1/completions", 200)
print(json.dumps([ours.text(), figures.text()]))
"""


def test_the_values_of_all_processes_are_added_and_ours_stay_ours(tmp_path: Path) -> None:
    env = {"PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path)}
    for _ in range(2):  # the second server of a pod begins anew
        said = subprocess.run([sys.executable, "-c", _PROGRAM, "/run"], env=env, capture_output=True, check=True)
        ours, theirs = json.loads(said.stdout)
        assert 'sglang:num_requests_total{model="m"} 5.0' in theirs
        assert "ling_" not in theirs
        assert 'ling_requests_total{path="/generate",status="200"} 1.0' in ours
        assert 'ling_requests_total{path="/v1/completions",status="200"} 1.0' in ours
        assert "sglang" not in ours
    assert len(list(tmp_path.iterdir())) == 1
