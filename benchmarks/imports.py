"""How long SGLang's imports take a zygote: `python -m benchmarks.imports [--all]`. Needs SGLang's environment.

`--all`: with every model of SGLang's registry, as it comes, instead of those that we serve. Prints one line.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

from ling_engine.sglang import preload  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    if not args.all:
        os.environ[preload.REGISTRY] = preload.ARCHITECTURES
    gc.disable()  # as a zygote does
    began, used = time.monotonic(), time.process_time()
    preload.modules("BailingMoeV3ForCausalLM")
    took, busy = time.monotonic() - began, time.process_time() - used
    print(f"imported {len(sys.modules)} modules in {took:.1f} s, {busy:.1f} s of a processor")


if __name__ == "__main__":
    main()
