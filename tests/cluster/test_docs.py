"""Every command of docs/install.md, in its order, as a new user types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hack.cluster.access import program_path

if TYPE_CHECKING:
    from hack.cluster.access import Cluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/install.md"


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_for_new_users_works_word_by_word(cluster: Cluster) -> None:
    if not cluster.ours:
        pytest.skip("the page ends with the removal of everything: not on somebody's cluster")
    tools = (program_path("kubectl", local=True).parent, program_path("helm", local=True).parent)
    path = os.pathsep.join((*map(str, tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    try:
        for block in blocks():
            script = f"set -euo pipefail\n{block}"
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            if "v1/completions" in block:
                assert '"choices"' in done.stdout
    finally:
        cluster.install()
