"""The part that runs `ling-bench`: the published protocol, 8,192 tokens in, on our call and the cookbook's in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from . import switch_table
from .asking import Failed
from .lab import ROOT
from .stock import Stock, call

if TYPE_CHECKING:
    from .stage import Stage
    from .switch_table import Call

_CONTEXT = 8192 + 1024 + 512  # tokens of a request, some to spare
_TEXT = "33-126"  # ids that the checkpoints treat as text: drafts are right among them
_TOLD = ("TPOT", "step", "TTFT")  # rows of ling-bench's table that become rows here


def bench(stage: Stage) -> None:
    """Rows of the comparison, mode by mode; the whole results are ling-bench-MODE.json beside them."""
    stage.drop_stock()
    stage.drop_ours()
    for mode in stage.modes:
        with stage.report.part(f"{mode} bench"):
            of_mode(stage, mode)


def of_mode(stage: Stage, mode: str) -> None:
    lab = stage.lab
    called = call(lab, stage.model, mode, context=_CONTEXT)
    base, *rest = switch_table.calls(mode, lab.tp, called.argv, called.env, stage.args.tuned)
    wanted = switch_table.TUNED_RECIPE if stage.args.tuned else "recipe"
    engines = [engine(stage, mode, one) for one in (next(one for one in rest if one.name == wanted), base)]
    try:
        for one in engines:
            one.ready(stage.args.patience)
        compared(stage, mode, *engines)
    finally:
        for one in engines:
            one.stop()


def engine(stage: Stage, mode: str, one: Call) -> Stock:
    """Its counters are read; every engine keeps them in a folder of its own."""
    name = f"bench-{mode}-{one.name}".lower().replace(" ", "-")
    folder = stage.lab.work / name
    folder.mkdir(parents=True, exist_ok=True)
    env = {**one.env, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    return Stock(stage.lab, name, stage.model, mode, "--enable-metrics", argv=one.argv, env=env)


def compared(stage: Stage, mode: str, ours: Stock, base: Stock) -> None:
    """Raises Failed with what ling-bench says."""
    urls = [f"http://127.0.0.1:{one.port}" for one in (ours, base)]
    argv = [sys.executable, "-m", "ling_bench", "run", urls[0], "--against", urls[1], "--ids", _TEXT]
    argv += ["--acceptance", "predictable", "--hardware", str(stage.report.machine.get("gpu"))]
    argv += ["--out", str(stage.lab.out / f"ling-bench-{mode}.json".lower())]
    path = os.pathsep.join((str(ROOT / "bench"), stage.lab.env["PYTHONPATH"]))
    done = subprocess.run(argv, env=stage.lab.env | {"PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    told = [" ".join(line.split()) for line in lines if line.strip(" |").startswith(_TOLD)]
    stage.report.row(
        f"{mode} ling-bench, ours against the cookbook's", told, "exit code 0", done.returncode == 0, table=lines
    )
    if done.returncode:
        raise Failed(f"ling-bench ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
