"""ling-bench on two engines, with stand-ins for them: a call that fits its prompts, and what is told."""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from benchmarks.gpu import published
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.report import Report
from benchmarks.gpu.stage import Stage
from tests.support import flash

from ling_bench import arguments

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
| metric | first | second | ratio |
| TPOT, ms | 1.40 | 2.00 | 0.7000 |
| step = TPOT x accept length, ms | 5.46 | 7.80 | 0.7000 |
"""


class Engine:
    """Remembers how it was called."""

    made: ClassVar[list[Engine]] = []

    def __init__(self, lab: Lab, name: str, model: Path, mode: str, *more: str, argv: Any, env: Any) -> None:
        self.name, self.argv, self.env, self.stopped = name, [*argv, *more], env, False
        Engine.made.append(self)
        self.port = 10_000 + len(Engine.made)

    def ready(self, seconds: float) -> float:
        return 1.0

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(published, "Stock", Engine)
    monkeypatch.setattr(Engine, "made", [])
    (tmp_path / "config.json").write_text(json.dumps(flash.target()))
    args = argparse.Namespace(modes="NEXTN", tuned="/tables", patience=1)
    report = Report(path=tmp_path / "experiment.json", machine={"gpu": "NVIDIA H200"})
    return Stage(
        lab=Lab(out=tmp_path, work=tmp_path / "work"), report=report, args=args, model=tmp_path, shape=tmp_path
    )


def answers(monkeypatch: pytest.MonkeyPatch, code: int) -> list[list[str]]:
    asked: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, code, stdout=TABLE, stderr="the endpoint failed")

    monkeypatch.setattr(published.subprocess, "run", run)
    return asked


def test_our_call_and_the_cookbooks_take_turns_in_the_published_protocol(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, 0)
    published.bench(stage)
    ours, base = Engine.made
    assert [one.name for one in Engine.made] == ["bench-nextn-recipe-and-tuned-moe", "bench-nextn-cookbook"]
    for one in Engine.made:
        assert int(one.argv[one.argv.index("--context-length") + 1]) > 8192 + 1024
        assert "--enable-metrics" in one.argv
        assert one.stopped
    assert ours.env["PROMETHEUS_MULTIPROC_DIR"] != base.env["PROMETHEUS_MULTIPROC_DIR"]
    wishes = arguments.parse(asked[0][3:])
    assert isinstance(wishes, arguments.RunWishes)
    assert (wishes.url, wishes.against) == (f"http://127.0.0.1:{ours.port}", f"http://127.0.0.1:{base.port}")
    assert (wishes.acceptance, wishes.input_tokens, wishes.requests) == ("predictable", None, None)
    row = stage.report.rows[0]
    assert (row["name"].split()[0], row["ok"]) == ("NEXTN", True)
    assert [line.split(",")[0] for line in row["value"]] == ["| TPOT", "| step = TPOT x accept length"]


def test_a_result_that_is_refused_fails_its_mode_and_not_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, 1)
    stage.args.modes = "NEXTN,None"
    published.bench(stage)
    failed = [row["name"] for row in stage.report.rows if "ended with 1" in str(row["value"])]
    assert failed == ["NEXTN bench: failed", "None bench: failed"]
    assert len(Engine.made) == 4
    assert all(one.stopped for one in Engine.made)
