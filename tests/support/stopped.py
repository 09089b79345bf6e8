"""Programs of the local cluster that hang for a while: SIGSTOP, and SIGCONT whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster.access import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster


@contextlib.contextmanager
def stopped(host: str, program: str) -> Iterator[None]:
    """A program of a host: `cp` is the control plane's, nodes have their own names."""
    pid = _pid(f"ling-{host}", program)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def api_server_stopped(cluster: Cluster) -> Iterator[None]:
    """As on a machine that hangs: requests to it get no answer. Afterwards it is ready again."""
    with stopped("cp", "kube-apiserver"):
        yield
    cluster.wait_for("the API server answers", lambda: cluster.kubectl("get", "--raw", "/readyz", check=False) == "ok")


def _pid(space: str, program: str) -> int:
    """The oldest process of that name in a network namespace: a child that will soon be another program is younger."""
    born: dict[int, int] = {}
    for pid in map(int, run("ip", "netns", "pids", space).split()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name == program:
                born[int(rest.split()[19])] = pid
    assert born, f"{program} does not run in {space}"
    return born[min(born)]
