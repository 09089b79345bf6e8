"""A layer of experts as SGLang computes it for few rows, and as our kernels do: `python -m benchmarks.few_rows`.

Times in CUDA graphs, by rows and part (scores, choice, experts, and all of it), microseconds of one layer; each call
has other inputs, so that it meets other experts. Then plans of our two kernels of experts are timed, one kernel's with
the other's best, the likely ones first, as long as there is time. What is further off than rounding is left out.
KDA's verification by columns of a program, products, and a block of DSPARK's drafts come last, for as long again.
Prints a line for each; layers go into a JSON file too.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

from benchmarks import moe_plan  # noqa: E402
from benchmarks.tune_moe import SMALL_E, attempt, usual  # noqa: E402

from ling_engine.kernels.plans import Markov, Plan  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHARED_MEMORY = 220 << 10  # bytes that a program may use
MATRICES = {  # columns, summands, rows of a round, whether in fp8: what the target verifies by, what drafts read
    "KDA's input": (20512, 2560, 9, False), "attention's output": (2560, 4096, 9, False),
    "MLA's queries": (6144, 2560, 9, False), "dense gate and up": (12288, 2560, 9, False),
    "dense down": (2560, 6144, 9, False),
    "draft: head": (157184, 2560, 8, True), "draft: head, one row": (157184, 2560, 1, True),
    "draft: context": (40960, 2560, 9, True), "draft: qkv, gate and up": (12288, 2560, 8, True),
    "draft: attention's output": (2560, 4096, 8, True), "draft: down": (2560, 6144, 8, True),
}  # fmt: skip
PROCESSORS = 132  # of an H200
# columns, summands, warps, stages; of how many summands programs share a block, or how many programs share all blocks
CUTS = tuple(itertools.product((32, 64, 16), (256, 128, 512), (4, 2, 8), (4, 3, 6)))
SHARED = (*((1, programs * PROCESSORS) for programs in range(5)), *((parts, 0) for parts in (2, 4, 8)))
COLUMNS = (4, 8, 16, 32)  # of a state of KDA for a program; SGLang has 4
VERIFIED = {"NEXTN": (6, 0), "DSPARK": (9, 32)}  # rows of a round, ring of its replay
PARTS = ("scores", "choice", "experts", "layer")


def candidates(plan: Plan, columns: int, summands: int, widths: int) -> Iterator[Plan]:
    """Plans of a kernel whose iteration loads `widths` tiles of weights; the one in use first."""
    yield plan
    shared = (1, 2, 3, 4) if widths == 1 else (1,)  # the way down: programs that share a block of columns
    cuts = itertools.product((32, 16, 64), (256, 128), (4, 2, 8), (4, 6, 3, 5), shared)
    for width, step, warps, stages, parts in cuts:
        one = Plan(columns=width, summands=step, warps=warps, stages=stages, parts=parts)
        room = (width * widths + 16) * step * 2 * (stages - 1)
        if one != plan and one.fits(columns, summands) and room <= _SHARED_MEMORY:
            yield one


def searched(
    kernels: tuple[Plan, Plan],
    hidden: int,
    columns: int,
    took: Callable[[tuple[Plan, Plan]], float | None],
    ends: float,
) -> tuple[tuple[Plan, Plan], list[tuple[Plan, Plan, float]]]:
    """The fastest pair, one kernel after the other, and all that were timed, in us. Half of the time is for each."""
    found = list[tuple[Plan, Plan, float]]()
    began = time.monotonic()
    best, least = kernels, took(kernels)
    if least is None:
        raise RuntimeError(f"{kernels}: computes something else than SGLang")
    found.append((*kernels, least))
    for at, (wide, deep, tiles) in enumerate(((columns, hidden, 2), (hidden, columns, 1))):
        until = began + (ends - began) * (at + 1) / 2
        for one in itertools.islice(candidates(kernels[at], wide, deep, tiles), 1, None):
            if time.monotonic() >= until:
                break
            pair = (one, best[1]) if at == 0 else (best[0], one)
            us = attempt(functools.partial(took, pair))
            if us is not None:
                found.append((*pair, us))
                if us < least:
                    best, least = pair, us
    return best, found


def compile_all(args: argparse.Namespace) -> None:
    """One of several processes that fill Triton's cache, with few experts: the kernels are the same."""
    from benchmarks import few_rows_layer

    part, count = map(int, args.compile.split("/"))
    few_rows_layer.boot(args.shape)
    number = 0
    for case in args.cases:
        small = moe_plan.cases(f"{min(case.layer.experts, SMALL_E)}x{case.layer.columns}")[0]
        layer = few_rows_layer.Layer(small, limit=args.limit or None)
        for rows in (1, 2):  # Triton makes a kernel of its own for one row
            first = layer.plans(rows)
            ups = candidates(first[0], layer.columns, layer.hidden, 2)
            downs = candidates(first[1], layer.hidden, layer.columns, 1)
            for pair in [(up, first[1]) for up in ups] + [(first[0], down) for down in downs]:
                number += 1
                if number % count == part and time.monotonic() < args.ends:
                    attempt(functools.partial(layer.ours, layer.calls(rows)[:1], pair))


def on_gpu(args: argparse.Namespace) -> None:
    mine = [sys.executable, "-m", "benchmarks.few_rows", *sys.argv[1:], "--seconds", str(args.seconds / 2)]
    compiling = [subprocess.Popen([*mine, "--compile", f"{part}/{args.jobs}"], cwd=ROOT) for part in range(args.jobs)]
    from benchmarks import few_rows_layer

    few_rows_layer.boot(args.shape)
    print(f"compiled in {args.jobs} processes: {sorted({process.wait() for process in compiling})}", flush=True)
    jobs = [(case, rows) for case in args.cases for rows in args.rows]
    told = list[dict[str, Any]]()
    for case in args.cases:
        layer = few_rows_layer.Layer(case, limit=args.limit or None)
        for rows in args.rows:
            until = moe_plan.shares(jobs, time.monotonic(), args.ends)
            jobs.pop(0)
            told.append({"case": case.name, "rows": rows, **of(layer, rows, until)})
            args.out.write_text(json.dumps(told))
            print(line(told[-1]), flush=True)
        del layer
    for mode, (rows, ring) in VERIFIED.items():
        verified(mode, rows, few_rows_layer.Verify(rows, ring=ring))
    for name, (columns, summands, rows, rounded) in MATRICES.items():
        matrix = few_rows_layer.Product(columns, summands, rounded=rounded)
        multiplied(name, rows, matrix, time.monotonic() + args.seconds / len(MATRICES))
    drafting(few_rows_layer.Markov())


def verified(mode: str, rows: int, layer: Any) -> None:
    """What the verification of a round takes, by columns of a program."""
    took = {columns: attempt(functools.partial(layer.time, columns)) for columns in COLUMNS}
    print(f"KDA verifies {mode}'s {rows} rows: us by columns of a program {took}", flush=True)


def multiplied(name: str, rows: int, matrix: Any, until: float) -> None:
    """What a matrix takes by PyTorch in bf16, by our kernel, and the best ways to cut it that there is time for."""
    times = list[tuple[float, str]]()
    for one in ways(matrix.columns, matrix.summands, 1 if matrix.rounded else 2):
        if time.monotonic() >= until:
            break
        us = attempt(functools.partial(matrix.time, rows, one))
        times += [] if us is None else [(round(us, 1), str(one))]
    took = [matrix.time(rows, one) for one in (None, matrix.plan)]
    print(f"{name}, {rows} rows: {took[0]:.1f} -> {took[1]:.1f} us; the best {sorted(times)[:4]}", flush=True)


def ways(columns: int, summands: int, width: int) -> Iterator[Plan]:
    """To cut a product of numbers of `width` bytes, so that all programs fit on the GPU at once or nearly."""
    for (shared, programs), (block, step, warps, stages) in itertools.product(SHARED, CUTS):
        one = Plan(columns=block, summands=step, warps=warps, stages=stages, parts=shared, programs=programs)
        room = (block * width + 2 * 16) * step * (stages - 1)
        many = programs or columns // block * shared
        at_once = PROCESSORS * max(1, _SHARED_MEMORY // room)
        if one.fits(columns, summands / shared) and 100 <= many < at_once + PROCESSORS:
            yield one


def drafting(block: Any) -> None:
    """What DSPARK's drafts take after the head, SGLang's way and ours, and the best ways to cut a step."""
    took = [block.time(ours=ours) for ours in (False, True)]
    times = list[tuple[float, str]]()
    for words, tile, warps in itertools.product((128, 256, 512), (32, 64), (4, 8)):
        block.head.plan = Markov(words=words, tile=tile, warps=warps)
        us = attempt(functools.partial(block.time, ours=True))
        times += [] if us is None else [(round(us, 1), f"{words} words, {tile} at once, {warps} warps")]
    print(f"DSPARK's block after the head: {took[0]:.1f} -> {took[1]:.1f} us; the best {sorted(times)[:4]}", flush=True)


def of(layer: Any, rows: int, until: float) -> dict[str, Any]:
    """What a layer takes SGLang's way and ours, part by part, and the best plans."""
    times = {name: [layer.time(rows, name, ours=ours) for ours in (False, True)] for name in PARTS}
    best, found = searched(
        layer.plans(rows),
        layer.hidden,
        layer.columns,
        lambda pair: layer.time(rows, "experts", ours=True, pair=pair),
        until,
    )
    layer.use(best)
    times["layer, best plans"] = [times["layer"][0], layer.time(rows, "layer", ours=True)]
    layer.use(None)
    return {
        "times": times, "apart": layer.apart(rows), "best": [asdict(one) for one in best], "tried": len(found),
        "found": [[asdict(up), asdict(down), us] for up, down, us in sorted(found, key=lambda one: one[2])[:20]],
    }  # fmt: skip


def line(one: dict[str, Any]) -> str:
    said = ", ".join(f"{name} {a:.1f} -> {b:.1f}" for name, (a, b) in one["times"].items())
    return f"{one['case']} rows={one['rows']}: {said} us; best of {one['tried']}: {one['best']}; {one['apart']}"


def arguments(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    usual(parser, "513x768", "1,6,9,4,2", 240)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "few_rows.json")
    parser.add_argument("--limit", type=float, default=7.0, help="clamp of gate and up; 0 = none")
    args = parser.parse_args(argv)
    args.ends = time.monotonic() + args.seconds
    args.out.parent.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    args = arguments()
    if args.compile:
        compile_all(args)
    else:
        on_gpu(args)


if __name__ == "__main__":
    main()
