"""`python -m benchmarks`: see bench.py."""

from __future__ import annotations

import sys

from benchmarks.bench import main

sys.exit(main(sys.argv[1:]))
