"""`python -m tests.fuzz.run TARGET [libFuzzer flags]`: atheris on one target, beginning with its corpus.

New inputs that reach new code are added to tests/fuzz/corpus/TARGET; a failing one is written to crash-*.
"""

from __future__ import annotations

import os
import sys

import atheris

with atheris.instrument_imports(include=["ling_api", "ling_nodeagent", "ling_engine", "ling_operator", "ling_bench"]):
    from tests.fuzz.targets import CORPUS, TARGETS


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"write one of {', '.join(TARGETS)}")
    name = sys.argv.pop(1)
    new = os.environ.get("LING_FUZZ_NEW")  # where new inputs go, if not into the corpus
    folders = [f"{CORPUS}/{name}"] if new is None else [new, f"{CORPUS}/{name}"]
    atheris.Setup([sys.argv[0], *sys.argv[1:], *folders], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
