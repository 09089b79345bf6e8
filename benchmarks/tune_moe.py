"""Tunes SGLang's fused MoE kernel for the shapes of Ling-3.0-flash at small batches: `python -m benchmarks.tune_moe`.

For each shape (experts E, the shared one among them; columns N of a rank) and each number of rows M every configuration
is timed inside a CUDA graph, each call with other experts, so that weights come from memory as in decoding. The best go
where SGLang looks for them (`SGLANG_MOE_CONFIG_DIR`); what was timed is kept, so that an interrupted run goes on.
Tuned configurations change the order of sums within a tile (rounding), never which experts are taken. bf16 only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN, CHOSEN = 2560, 8
ROWS = (1, 2, 4, 6, 9, 2048)
SETS, REPLAYS = 8, 5  # calls in a graph, each with its own experts; replays of it
SMALL_E = 17  # experts while only compiling

Config = dict[str, int]


def configurations(rows: int) -> Iterator[Config]:
    """Few rows meet an expert, so the smallest tile of rows is enough; a prompt's piece wants larger ones."""
    tiles = (16,) if rows <= 64 else (16, 32, 64)
    for m, n, k, warps, stages in itertools.product(tiles, (32, 64, 128), (64, 128, 256), (4, 8), (2, 3, 4, 5)):
        if (n + m) * k * 2 * stages <= 200 << 10:  # bytes of shared memory
            yield {
                "BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 1, "num_warps": warps,
                "num_stages": stages,
            }  # fmt: skip


def boot(shape: Path) -> None:
    """SGLang's runtime as a scheduler of one rank has it; `shape` holds a config.json."""
    from sglang.srt.distributed import bootstrap
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.runtime_context import SpawnRanks, get_device, publish
    from sglang.srt.server_args import prepare_server_args

    argv = ["--model-path", str(shape), "--trust-remote-code", "--skip-tokenizer-init", "--device", "cuda"]
    server_args = prepare_server_args([*argv, "--attention-backend", "triton", "--disable-radix-cache"])
    server_args.resolve_once()
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    bootstrap.init_parallel_runtime(server_args=server_args, device=get_device().device, dist_port=port)


class Layer:
    """The experts of one layer, and prompts that meet them at random; the last expert is the shared one."""

    def __init__(self, experts: int, columns: int) -> None:
        import torch

        self.experts = experts
        self.up = torch.randn(experts, 2 * columns, HIDDEN, device="cuda", dtype=torch.bfloat16) * 0.02
        self.down = torch.randn(experts, HIDDEN, columns, device="cuda", dtype=torch.bfloat16) * 0.02

    def calls(self, rows: int) -> list[tuple[Any, Any, Any]]:
        import torch

        found = []
        for seed in range(SETS):
            torch.manual_seed(seed)
            scores = torch.rand(rows, self.experts - 1, device="cuda")
            ids = scores.topk(min(CHOSEN, self.experts - 1), -1).indices
            shared = torch.full((rows, 1), self.experts - 1, device="cuda")
            ids = torch.cat((ids, shared), -1).to(torch.int32)
            x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
            found.append((x, torch.full(ids.shape, 1 / CHOSEN, device="cuda"), ids))
        return found

    def run(self, calls: list[tuple[Any, Any, Any]], config: Config | None) -> Any:
        from sglang.srt.layers.moe.moe_runner.triton_utils import override_config
        from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts_impl

        with override_config(config):
            return [fused_experts_impl(x, self.up, self.down, weights, ids) for x, weights, ids in calls][-1]

    def time(self, rows: int, config: Config | None) -> float:
        """Microseconds of one call."""
        import torch

        calls = self.calls(rows)
        self.run(calls[:1], config)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(calls, config)
        times = []
        for _ in range(REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / SETS)
        return statistics.median(times[1:])


def compile_all(args: argparse.Namespace) -> None:
    """One of several processes that fill Triton's cache, with few experts: the kernels are the same."""
    part, parts = map(int, args.compile.split("/"))
    boot(args.shape)
    for columns in sorted({columns for _, columns in args.shapes}):
        layer = Layer(SMALL_E, columns)
        for rows in args.rows:
            for number, config in enumerate(configurations(rows)):
                if number % parts == part:
                    attempt(functools.partial(layer.run, layer.calls(rows)[:1], config))


def attempt(work: Any) -> Any:
    """None for a configuration that the GPU refuses (registers, shared memory)."""
    try:
        return work()
    except Exception as error:
        print(f"left out: {type(error).__name__}: {' '.join(str(error).split())[:120]}", flush=True)
        return None


def tune(args: argparse.Namespace) -> None:
    ends = time.monotonic() + args.seconds
    if args.jobs:
        mine = [sys.executable, "-m", "benchmarks.tune_moe", *sys.argv[1:]]
        running = [subprocess.Popen([*mine, "--compile", f"{part}/{args.jobs}"], cwd=ROOT) for part in range(args.jobs)]
        for process in running:
            process.wait()
        print(f"compiled, {ends - time.monotonic():.0f} s left", flush=True)
    boot(args.shape)
    for experts, columns in args.shapes:
        path = args.out / f"timed-{experts}-{columns}.json"
        timed: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
        layer = Layer(experts, columns)
        for rows in args.rows:
            time_rows(layer, rows, timed.setdefault(str(rows), {}), ends)
            path.write_text(json.dumps(timed))
            print(f"E={experts} N={columns} M={rows}: {said(timed[str(rows)])}", flush=True)
        write(args.out, experts, columns, timed)


def time_rows(layer: Layer, rows: int, found: dict[str, float], ends: float) -> None:
    """Microseconds by configuration, as long as there is time; "null" is SGLang's default."""
    for config in (None, *configurations(rows)):
        key = json.dumps(config)
        if key not in found and time.monotonic() < ends:
            took = attempt(functools.partial(layer.time, rows, config))
            found[key] = float("inf") if took is None else took


def said(found: dict[str, float]) -> str:
    if "null" not in found:
        return "not timed"
    best = min(found, key=lambda one: found[one])
    default = found["null"]
    ratio = found[best] / default
    return f"default {default:.1f} us, best {found[best]:.1f} us ({ratio:.3f}) of {len(found)}: {best}"


def write(out: Path, experts: int, columns: int, timed: dict[str, dict[str, float]]) -> None:
    """As SGLang reads it. It takes the entry of the nearest number of rows, so each that was timed has one."""
    import triton
    from sglang.srt.layers.moe.moe_runner.triton_utils import get_config_file_name

    chosen = {}
    for rows, found in timed.items():
        tuned = {config: took for config, took in found.items() if config != "null"}
        if tuned:
            chosen[rows] = json.loads(min(tuned, key=lambda one: tuned[one]))
    folder = out / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / get_config_file_name(experts, columns, None)).write_text(json.dumps(chosen, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=Path, required=True, help="folder with a config.json of the architecture")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "moe", help="a folder to name in SGLANG_MOE_CONFIG_DIR"
    )
    parser.add_argument(
        "--shapes", default="513x768,513x384,513x192", help="experts x columns of a rank, with the shared one"
    )
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile first; 0 = none")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.shapes = [tuple(map(int, one.split("x"))) for one in args.shapes.split(",")]
    args.rows = list(map(int, args.rows.split(",")))
    args.out.mkdir(parents=True, exist_ok=True)
    if args.compile:
        compile_all(args)
    else:
        tune(args)


if __name__ == "__main__":
    main()
