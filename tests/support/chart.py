"""The chart as real helm renders it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.support import apiserver

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ling"
EVERYTHING = CHART / "ci/everything.yaml"

type Object = dict[str, Any]


def helm_path() -> Path | None:
    """helm as `hack/cluster/build` compiles it, else that of the PATH, else None."""
    built = apiserver.tool("helm") / "helm"
    found = shutil.which("helm")
    return built if built.exists() else Path(found) if found else None


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the result has stdout and stderr as text."""
    path = helm_path()
    assert path is not None, "helm is missing: run hack/cluster/build"
    return subprocess.run([str(path), *args], capture_output=True, text=True, timeout=180, check=False)


def render(*args: str, chart: Path = CHART) -> list[Object]:
    """The objects that an installation with these arguments makes. AssertionError with helm's words if it refuses."""
    done = helm("template", "ling", str(chart), "--namespace", "ling-system", *args)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def find(objects: list[Object], kind: str, name: str) -> Object:
    """The only object of that kind and name."""
    found = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]
