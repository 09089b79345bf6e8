"""From `git clone` to a first completion, typed as docs/install.md has it: a table of minutes per command.

    python3 benchmarks/newcomer.py [--source PATH] [--caches FOLDER]

On one machine, as root: the page's block for a cluster of its own, then every `sh` block up to the one that asks for a
completion. --caches names a new folder, for a machine that has nothing of ours; without it this machine's caches count.
What the distribution's packages bring is there already either way. The clone and the cluster go at the end.
The standard library alone: it runs where nothing is installed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(sh.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
CACHES = {  # where each tool keeps what it got or made
    "XDG_CACHE_HOME": "", "LING_CACHE": "ling", "UV_CACHE_DIR": "uv", "PIP_CACHE_DIR": "pip", "GOCACHE": "go-build",
    "GOPATH": "go", "GOMODCACHE": "go/mod",
}  # fmt: skip
LAST = "v1/completions"


def commands(page: str) -> list[str]:
    """Each command up to the first completion, in the page's order; one that goes on in the next line is one."""
    found: list[str] = []
    for info, text in FENCE.findall(page):
        if info.strip() == "sh" or "cluster-up" in text:
            lines = text.replace("\\\n", "\\\0").splitlines()
            found += [line.replace("\0", "\n") for line in lines if line.strip()]
        if LAST in text:
            return found
    raise SystemExit(f"newcomer: no block of docs/install.md asks for {LAST}")


def script(typed: list[str]) -> str:
    """One shell that does them all and writes to descriptor 9 when each has ended."""
    steps = [f"{one}\necho $EPOCHREALTIME >&9" for one in typed]
    return "\n".join(["set -euo pipefail", *steps]) + "\n"


def environment(caches: Path | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    if caches is None:
        return ours
    if caches.exists() and any(caches.iterdir()):
        raise SystemExit(f"newcomer: --caches: {caches} is not empty; name a new folder")
    caches.mkdir(parents=True, exist_ok=True)
    return {**ours, **{name: str(caches / below) for name, below in CACHES.items()}}


def timed(typed: list[str], folder: Path, env: dict[str, str]) -> list[float]:
    """Seconds of each command. SystemExit with the output's end when one fails."""
    page = script(typed).replace("~/.cache", env.get("XDG_CACHE_HOME") or "~/.cache")
    log, ends = folder.parent / "log", folder.parent / "ends"
    before = time.time()
    with log.open("w") as out, ends.open("w") as marks:
        done = subprocess.run(
            ["bash", "-c", f"exec 9>&{marks.fileno()}\n{page}"], cwd=folder, env=env, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, pass_fds=[marks.fileno()], check=False,
        )  # fmt: skip
    said, times = log.read_text(), [before, *map(float, ends.read_text().split())]
    took = [until - since for since, until in itertools.pairwise(times)]
    if done.returncode or '"choices"' not in said:
        print(table(typed, took))
        raise SystemExit(f"newcomer: command {len(took) + 1} failed: {said[-3000:]}")
    return took


def table(typed: list[str], took: list[float]) -> str:
    rows = [f"{seconds / 60:6.2f} min  {one.splitlines()[0][:90]}" for one, seconds in zip(typed, took, strict=False)]
    return "\n".join([*rows, f"{sum(took) / 60:6.2f} min  {len(took)} commands"])


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--source", default=str(ROOT), help="what is cloned (this checkout)")
    given.add_argument("--caches", type=Path, help="a new folder; without it this machine's caches are used")
    args = given.parse_args()
    env = environment(args.caches.resolve() if args.caches else None)
    with tempfile.TemporaryDirectory() as scratch:
        folder, begin = Path(scratch) / "ling", time.time()
        subprocess.run(["git", "clone", "-q", args.source, str(folder)], check=True, env=env)
        cloned = time.time() - begin
        typed = commands((folder / "docs/install.md").read_text())
        try:
            took = timed(typed, folder, env)
        finally:
            subprocess.run(["hack/cluster/down"], cwd=folder, env=env, check=False)
    sys.stdout.write(table(["git clone", *typed], [cloned, *took]) + "\n")


if __name__ == "__main__":
    main()
