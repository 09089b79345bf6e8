"""All figures of the spine on this machine: `make bench`.

    python -m benchmarks [--only attach,storm,respawn,tokens] [--runs 5] [--json build/bench.json]

One line per figure, `name value unit goal ok|MISS`, and the same as JSON. Exit code 1 when a goal is missed. Nothing
else should run on the machine meanwhile: its load is printed first. What clients notice through a Service is measured
on a cluster by benchmarks/continuity.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import attach_2g, respawn, tokens
from benchmarks.figures import Figure, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]


def attach(runs: int) -> Iterator[list[Figure]]:
    """A second process attaches a sealed 2 GiB set."""
    yield attach_2g.run(runs)


def storm(runs: int) -> Iterator[list[Figure]]:
    """A hundred processes attach within a second, and then at once."""
    argv = [sys.executable, str(ROOT / "benchmarks" / "attach_storm.py"), "--rounds", str(min(runs, 5)), "--goal", "20"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    figures = [figure for line in done.stdout.splitlines() if (figure := _storm_figure(line)) is not None]
    if not figures:
        raise RuntimeError(f"attach_storm.py measured nothing: {done.stderr.strip()[-500:]}")
    yield figures


def _storm_figure(line: str) -> Figure | None:
    words = line.split()
    if len(words) != 5 or not words[0].startswith("attach_storm."):
        return None
    name, value, unit, goal, _ = words
    if name.endswith(".fills"):
        return Figure(name=name, value=float(value), unit=unit, exactly=1)
    return Figure(name=name, value=float(value), unit=unit, most=None if goal == "-" else float(goal))


def respawns(runs: int) -> Iterator[list[Figure]]:
    """From a death to the next first token, by phase."""
    for preset in ("tiny", "small"):
        yield respawn.run(runs, preset)


def speeds(runs: int) -> Iterator[list[Figure]]:
    """Tokens and short requests a second."""
    for preset in ("tiny", "small", "1g"):
        yield tokens.run(min(runs, 3), preset, rate=preset == "tiny")


PARTS: dict[str, Callable[[int], Iterator[list[Figure]]]] = {
    "attach": attach,
    "storm": storm,
    "respawn": respawns,
    "tokens": speeds,
}


def main(argv: list[str]) -> int:
    """0; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Figures of the spine on this machine.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="of each; medians are told (%(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE")
    flags = parser.parse_args(argv)
    chosen = flags.only.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"--only: there is no part {unknown[0]!r}; write some of {','.join(PARTS)}")
    if flags.runs < 1:
        parser.error(f"--runs: write a number from 1, not {flags.runs}")
    machine = {
        "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "load": os.getloadavg()[0], "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
    print(f"# {machine['cores']} cores, load before the first run {machine['load']:.1f}", flush=True)
    found: list[Figure] = []
    for part in chosen:
        for figures in PARTS[part](flags.runs):
            print("\n".join(figure.line() for figure in figures), flush=True)
            found += figures
    write(flags.json, found, machine)
    return 0 if all(figure.ok for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
