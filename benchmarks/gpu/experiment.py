"""`python -m benchmarks.gpu.experiment`: what must be shown on a GPU, by worth, each part with its own time limit.

Parts share engines where they can; a part that fails or runs out of time ends alone. Rows are written as they come, so
a run that is cut off keeps what it has. `--parts a,b` chooses among them, in that order. On a machine of several GPUs
`CUDA_VISIBLE_DEVICES` names the one that a run uses: two of them run side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "nodeagent", "bench", "")]

from benchmarks.gpu import endurance, equality, pods, published, smoke, switches, tempo  # noqa: E402
from benchmarks.gpu.asking import OutOfTime  # noqa: E402
from benchmarks.gpu.lab import MODES, SAFE, Lab, gpu_mib  # noqa: E402
from benchmarks.gpu.report import Report  # noqa: E402
from benchmarks.gpu.stage import Stage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS: dict[str, tuple[Callable[[Stage], None], int]] = {
    "models": (equality.models, 200), "equal": (equality.equal, 480), "turns": (tempo.turns, 330),
    "bits": (endurance.bits, 120), "canary": (equality.canary, 120), "full": (equality.full, 120),
    "restarts": (tempo.restarts, 330),
    "beside": (tempo.beside, 300), "deaths": (endurance.deaths, 240), "apart": (pods.apart, 180),
    "newpod": (pods.new_pod, 200), "others": (equality.others, 260), "reference": (equality.reference, 200),
    "driver": (tempo.driver, 120),
    "wide": (equality.wide, 400),
    "switches": (switches.switches, 900), "profile": (switches.profile, 200),
    "bench": (published.bench, 240),
}  # fmt: skip


ENDING = 8  # seconds of the budget that are kept for the end


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Ends what it encloses, in the main thread, when its time is over."""

    def late(*_: object) -> None:
        raise OutOfTime(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        with contextlib.suppress(OutOfTime):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "build" / "gpu")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/ling-gpu"))
    parser.add_argument("--models", type=Path, default=Path("/dev/shm/ling-models"))
    parser.add_argument("--model", default="cut", help="folder of the checkpoint below --models")
    parser.add_argument("--size", default="--layers 12 --experts 64", help="arguments of benchmarks.gpu.models")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--budget", type=float, default=500, help="seconds for all parts")
    parser.add_argument("--patience", type=float, default=200, help="seconds for a start")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--long", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4, help="of beside: alone, gated, warming, parked")
    parser.add_argument("--window", type=float, default=6, help="seconds of a window of beside")
    parser.add_argument("--short", type=int, default=384, help="tokens of an answer of switches")
    parser.add_argument(
        "--beside",
        type=int,
        default=9,
        help="engines of switches on the GPU at once, the cookbook's among them; each has cores of its own where there "
        "are two processors for each and two more: 7 on 16",
    )
    parser.add_argument("--switches", default="", help="only these of them, by name, besides the cookbook's")
    parser.add_argument("--tuned", default="", help="a folder of MoE tables, as benchmarks.tune_moe writes it")
    parser.add_argument(
        "--variable", action="append", default=[], help="NAME=VALUE for the engines of profile, beside the recipe's"
    )
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--closest", default="NEXTN", help="the mode that is looked at from all sides")
    parser.add_argument("--runtime", default="sglang")
    parser.add_argument("--tp", type=int, default=1, help="ranks of every engine; as many GPUs are wanted")
    parser.add_argument(
        "--concurrency", type=int, default=1, help="requests that an engine decodes at a time; switches asks as many"
    )
    parser.add_argument("--temperature", type=float, default=0, help="of what switches asks; 0: greedy")
    parser.add_argument("--cpu", action="store_true", help="a rehearsal without a GPU")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    lab = Lab(out=args.out, work=args.work, cpu=args.cpu, runtime=args.runtime, tp=args.tp,
              concurrency=args.concurrency)  # fmt: skip
    report = Report(path=args.out / "experiment.json", machine=smoke.machine() | dict(SAFE))
    stage = Stage(lab=lab, report=report, args=args, model=args.models / args.model, shape=args.models / "shape")
    stage.idle_mib = gpu_mib()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ends = time.monotonic() + args.budget
    if not (stage.shape / "config.json").exists():
        argv = [sys.executable, "-m", "benchmarks.gpu.models", str(stage.shape), *args.size.split(), "--shape"]
        lab.start("shape", *argv).wait()
    try:
        for name in args.parts.split(","):
            part, most = PARTS[name]
            left = min(most, ends - time.monotonic() - ENDING)
            if left < 20:
                report.row(f"{name}: not run", "no time left", "run", False)
                continue
            lab.ends = time.monotonic() + left
            with limit(left), report.part(name):
                part(stage)
    finally:
        with limit(60), report.part("end"):
            endurance.end(stage)
        print("\n" + report.table(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
