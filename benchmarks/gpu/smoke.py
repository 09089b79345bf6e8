"""`python -m benchmarks.gpu.smoke`: finds out whether everything runs on this machine, and fills the JIT cache.

A model is made; at the same time stock SGLang starts in each mode with dummy weights, which compiles the kernels. Then
disk-loaded, filling and attaching engines of each mode, side by side. All logs and a JSON report go to the output
folder; the JIT cache stays in SGLANG_CACHE_DIR.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "nodeagent", "bench", "")]

from benchmarks.gpu import parity  # noqa: E402
from benchmarks.gpu.asking import Failed  # noqa: E402
from benchmarks.gpu.lab import MODES, Lab, gpu_mib  # noqa: E402
from benchmarks.gpu.report import Report  # noqa: E402
from benchmarks.gpu.stock import Stock  # noqa: E402

FALLBACK = "8"  # the dial, where it cannot be searched


def machine() -> dict[str, object]:
    """What it ran on."""
    names = ("torch", "sglang", "triton", "flashinfer-python", "sglang-kernel", "cuda-bindings", "grpcio", "uvicorn")
    found: dict[str, object] = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found["gpu"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        found["gpu"] = None
    return found


def compile_kernels(lab: Lab, report: Report, shape: Path, mode: str, patience: float) -> None:
    """A first start with dummy weights, then prompts of all lengths."""
    if lab.runtime == "reference":
        return
    with report.part(f"{mode} first start"):
        stock = Stock(lab, f"dummy-{mode}".lower(), shape, mode, "--load-format", "dummy")
        report.row(f"{mode} first start ready", stock.ready(patience))
        for length, new in ((16, 64), (700, 8), (2048, 8), (64, 256)):
            began = time.monotonic()
            stock.ask([65 + i % 26 for i in range(length)], new)
            report.row(f"{mode} first prompt of {length}", time.monotonic() - began)
    lab.stop(f"dummy-{mode}".lower())


def model(lab: Lab, report: Report, folder: Path, size: list[str], patience: float) -> Path:
    """Made once; kept for the next run."""
    if (folder / "config.json").exists():
        return folder
    with report.part("model"):
        for more in ((), ("--dial", FALLBACK)):
            if not (folder / "config.json").exists():
                lab.start("model", sys.executable, "-m", "benchmarks.gpu.models", str(folder), *size, *more)
                lab.until(lambda: not lab.alive("model"), "the model to be made", patience)
        report.row("model made", lab.tail("model", 900))
        if not (folder / "config.json").exists():
            raise Failed(f"no model: {lab.tail('model', 800)}")
    return folder


def one_mode(lab: Lab, report: Report, shape: Path, made: Path, mode: str, args: argparse.Namespace) -> None:
    if not args.warm:
        compile_kernels(lab, report, shape, mode, args.patience)
    lab.until(lambda: (made / "config.json").exists(), "the model", args.patience)
    with report.part(f"{mode} parity"):
        pair = parity.start(lab, report, made, mode, patience=args.patience)
        parity.run(lab, report, pair, args.new)
    for name in (f"stock-{mode}".lower(), f"ours-{mode}".lower()):
        lab.stop(name)


def loader_alone(lab: Lab, report: Report, made: Path, args: argparse.Namespace) -> None:
    """The loader without agent and server: filled, attached by a second process, every tensor compared."""
    lab.until(lambda: (made / "config.json").exists(), "the model", args.patience)
    for mode in args.modes.split(","):
        with report.part(f"{mode} loader alone"):
            name = f"loader-{mode}".lower()
            argv = [sys.executable, "-m", "tests.gpu.loader_alone", "--model", str(made)]
            argv += {"None": [], "NEXTN": ["--algorithm", "NEXTN"]}.get(
                mode, ["--algorithm", "DSPARK", "--draft", str(made / "dspark")]
            )
            process = lab.start(name, *argv, OUT=str(args.out))
            lab.until(lambda: process.poll() is not None, "the loader's comparison", 240)  # noqa: B023
            report.row(f"{mode} loader alone: exit code", process.returncode, "0", process.returncode == 0)
            report.row(f"{mode} loader alone says", lab.tail(name, 1500))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "gpu")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/ling-gpu"))
    parser.add_argument("--models", type=Path, default=Path("/dev/shm/ling-models"))
    parser.add_argument("--patience", type=float, default=400, help="seconds for a start")
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--size", default="--layers 12 --experts 64", help="arguments of benchmarks.gpu.models")
    parser.add_argument("--runtime", default="sglang")
    parser.add_argument("--warm", action="store_true", help="the JIT cache is there already")
    parser.add_argument("--cpu", action="store_true", help="a rehearsal without a GPU")
    args = parser.parse_args()
    lab = Lab(out=args.out, work=args.work, cpu=args.cpu, runtime=args.runtime)
    report = Report(path=args.out / "smoke.json", machine=machine())
    report.row("GPU MiB before", gpu_mib())
    made, shape = args.models / "cut", args.models / "shape"
    size = args.size.split()
    lab.start("shape", sys.executable, "-m", "benchmarks.gpu.models", str(shape), *size, "--shape").wait()
    modes = args.modes.split(",")
    try:
        with ThreadPoolExecutor(len(modes) + 2) as pool:
            making = pool.submit(model, lab, report, made, size, args.patience)
            if args.runtime == "sglang" and not args.cpu:
                pool.submit(loader_alone, lab, report, made, args)
            for mode in modes:
                pool.submit(one_mode, lab, report, shape, made, mode, args)
            making.result()
    finally:
        lab.end()
        time.sleep(1)
        report.row("GPU MiB after", gpu_mib())
        print(report.table(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
