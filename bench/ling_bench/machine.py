"""The machine that measures, for the result's stamp; its GPUs only where the endpoint is on the same machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

_HERE = {"localhost", "127.0.0.1", "::1"}


def stamp(hardware: str, hosts: set[str]) -> dict[str, Any]:
    """`hardware` is what the user says of the endpoint's; `gpus` with their driver, as nvidia-smi says it here."""
    found: dict[str, Any] = {
        "host": platform.node(), "cores": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release(),
        "python": platform.python_version(), "hardware": hardware or None,
    }  # fmt: skip
    if hosts <= _HERE:
        found |= {"cpu": _cpu(), "gpus": _gpus()}
    return found


def _cpu() -> str | None:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        return None


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = [program, "--query-gpu=name,driver_version,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
