"""Debian's Prometheus: its programs, where `hack/bootstrap` unpacks them or on the PATH."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def program(name: str) -> Path | None:
    """`prometheus` or `promtool`, None where it is not."""
    cache = Path(os.environ.get("LING_CACHE") or Path.home() / ".cache/ling")
    unpacked = cache / "tools/prometheus/usr/bin" / name
    found = shutil.which(name)
    return unpacked if unpacked.exists() else Path(found) if found else None
