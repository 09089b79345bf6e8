"""Tunes SGLang's fused MoE kernel for the shapes of Ling-3.0-flash at small batches: `python -m benchmarks.tune_moe`.

For each case (experts, the shared one among them, x columns of a rank, `:fp8` for block-wise fp8) and each number of
rows, configurations are timed inside a CUDA graph, each call with other experts. The time that is given is shared out
evenly among what is left, the likely configurations first; whatever was timed stays in the output folder, so the same
command goes on. What computes something else than SGLang's default is left out. The best go where SGLang looks for them
(`SGLANG_MOE_CONFIG_DIR`); copied to engine/ling_engine/moe_configs they are shipped. They change the order of sums
(rounding), never which experts are taken.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

from benchmarks import moe_plan  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.moe_plan import Case, Config, Timed

SMALL_E = 129  # experts while only compiling: the same kernels, as long as few rows meet many experts


class Timer(Protocol):
    """One case's experts on a device."""

    def default(self, rows: int) -> Config: ...

    def time(self, rows: int, config: Config) -> float | None:
        """Microseconds of a call; None for a result that is wrong."""


def attempt[T](work: Callable[[], T]) -> T | None:
    """None for a configuration that the GPU refuses (registers, shared memory). A lost device ends the run."""
    try:
        return work()
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        if any(word in said for word in ("illegal memory access", "unspecified launch failure")):
            raise
        print(f"left out: {type(error).__name__}: {said}", flush=True)
        return None


def tune(
    cases: list[Case],
    rows: list[int],
    out: Path,
    ends: float,
    timer: Callable[[Case], Timer],
    name: Callable[[Case], Path],
) -> None:
    """`name` is where a case's table goes, below the folder that SGLANG_MOE_CONFIG_DIR names."""
    jobs = [(case, number) for case in cases for number in rows]
    for case in cases:
        path = out / f"timed-{case.name.replace(':', '-')}.json"
        timed: Timed = json.loads(path.read_text()) if path.exists() else {}
        found: Timer | None = None
        defaults: dict[str, Config] = {}
        for number in rows:
            until = moe_plan.shares(jobs, time.monotonic(), ends)
            jobs.pop(0)
            if time.monotonic() >= ends:
                print(f"E,N={case.name} M={number}: no time left", flush=True)
                continue
            found = found or timer(case)
            usual = defaults[str(number)] = found.default(number)
            _time(found, case, number, usual, timed, until)
            path.write_text(json.dumps(timed))
            print(f"E,N={case.name} M={number}: {moe_plan.said(timed[str(number)], usual)}", flush=True)
        if found is not None and (table := moe_plan.table({m: timed[m] for m in defaults}, defaults)):
            usually = {str(number): found.default(number) for number in moe_plan.bounds(case)}
            write(name(case), usually | table)


def _time(timer: Timer, case: Case, rows: int, usual: Config, timed: Timed, until: float) -> None:
    known = timed.setdefault(str(rows), {})
    for config in moe_plan.left(timed, case, rows, usual):
        if known and time.monotonic() >= until:
            return
        took = attempt(functools.partial(timer.time, rows, config))
        known[moe_plan.key(config)] = math.inf if took is None else took


def write(path: Path, table: dict[str, Config]) -> None:
    """What the file said of other numbers of rows is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    merged = sorted((kept | table).items(), key=lambda one: int(one[0]))
    path.write_text(json.dumps(dict(merged), indent=1) + "\n")


def compile_all(args: argparse.Namespace) -> None:
    """One of several processes that fill Triton's cache, with few experts: the kernels are the same."""
    from benchmarks import moe_kernel

    part, parts = map(int, args.compile.split("/"))
    ends = time.monotonic() + args.seconds
    moe_kernel.boot(args.shape)
    number = 0
    for case in args.cases:
        small = moe_plan.cases(f"{min(case.layer.experts, SMALL_E)}x{case.name.partition('x')[2]}")[0]
        kernel = moe_kernel.Kernel(small)
        for rows in args.rows:
            calls = kernel.calls(rows)[:1]
            for config in moe_plan.configurations(case, rows):
                number += 1
                if number % parts == part and time.monotonic() < ends:
                    attempt(functools.partial(kernel.run, calls, config))


def compile_first(args: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """For half of the time at most: compiling is what takes it, and processors do it side by side."""
    mine = [sys.executable, "-m", "benchmarks.tune_moe", *sys.argv[1:], "--seconds", str(args.seconds / 2)]
    return [subprocess.Popen([*mine, "--compile", f"{part}/{args.jobs}"], cwd=ROOT) for part in range(args.jobs)]


def on_gpu(args: argparse.Namespace) -> None:
    ends = time.monotonic() + args.seconds
    compiling = compile_first(args)
    import torch
    import triton
    from benchmarks import moe_kernel

    moe_kernel.boot(args.shape)  # meanwhile
    codes = [process.wait() for process in compiling]
    print(f"compiled in {args.jobs} processes, exit codes {sorted(set(codes))}", flush=True)
    folder = args.out / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, {ends - time.monotonic():.0f} s left to time in", flush=True)
    tune(args.cases, args.rows, args.out, ends, moe_kernel.Kernel, lambda case: folder / case.layer.table(gpu))


def usual(parser: argparse.ArgumentParser, cases: str, rows: str, seconds: float) -> None:
    """The arguments of whoever times a layer's kernels, with what they are when nothing is said."""
    parser.add_argument("--shape", type=Path, required=True, help="folder with a config.json of the architecture")
    parser.add_argument("--cases", type=moe_plan.cases, default=moe_plan.cases(cases), help="EXPERTSxCOLUMNS[:fp8],...")
    parser.add_argument("--rows", type=lambda text: list(map(int, text.split(","))), default=rows)
    parser.add_argument("--seconds", type=float, default=seconds, help="compiling included")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile first; 0 = none")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)


def arguments(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    usual(parser, moe_plan.CASES, ",".join(map(str, moe_plan.ROWS)), 300)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "moe", help="a folder to name in SGLANG_MOE_CONFIG_DIR"
    )
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    args = arguments()
    if args.compile:
        compile_all(args)
    else:
        on_gpu(args)


if __name__ == "__main__":
    main()
