"""From a death to the next first token, by phase: the server's (respawn), the whole engine pod's (container restart).

A client connects right after the kill and waits in the slot's backlog; nobody is refused. The launcher's and agent's
moments come from their logs (to 1 ms), the server's from the phases that it reports.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, median
from benchmarks.rig import rig

if TYPE_CHECKING:
    from benchmarks.rig import Rig

SERVER = ("opened", "attached", "warm", "accepting")


def run(runs: int, preset: str) -> list[Figure]:
    """Medians of `runs` respawns and of `runs` container restarts."""
    with rig(preset) as slot:
        respawns = [respawn(slot) for _ in range(runs)]
        restarts = [restart(slot) for _ in range(runs)]
    return [
        *_rows(f"respawn_{preset}", respawns, 5000),
        *_rows(f"container_restart_{preset}", restarts, 20000),
    ]


def _rows(name: str, runs: list[dict[str, float]], most: float) -> list[Figure]:
    total = median(f"{name}_to_first_token", "ms", [sum(each.values()) for each in runs], most=most)
    return [total, *(median(f"{name}_{step}", "ms", [each[step] for each in runs]) for step in runs[0])]


def respawn(slot: Rig) -> dict[str, float]:
    """Milliseconds by step of one SIGKILL of the server."""
    slot.settled()
    killed = slot.kill_server()
    token = slot.first_token()
    return _steps(killed, [("seen_and_go", slot.moment("agent", "decision=Go ", killed))], slot, killed, token)


def restart(slot: Rig) -> dict[str, float]:
    """Milliseconds by step of one SIGKILL of the launcher with all its children, and its start."""
    slot.settled()
    killed = slot.kill_launcher()
    slot.engine("one", "d001")
    token = slot.first_token()
    gated = slot.moment("one", "phase=gated was=checking", killed)
    moments = [
        ("launcher_start", slot.moment("one", "launcher=started", killed)),
        ("zygote_import", slot.moment("one", "zygote=ready", killed)),
        ("check", gated),
        ("go", slot.moment("agent", "decision=Go ", gated)),
    ]
    return _steps(killed, moments, slot, killed, token)


def _steps(began: float, moments: list[tuple[str, float]], slot: Rig, killed: float, token: float) -> dict[str, float]:
    phases = slot.phases()
    forked = slot.moment("one", "phase=active", killed) - phases["accepting"] / 1000
    names = ("fork", "open_model", "attach", "warm_up", "accept", "first_token")
    ends = [forked, *(forked + phases[step] / 1000 for step in SERVER), token]
    times = [began, *(when for _, when in moments), *ends]
    steps = [*(name for name, _ in moments), *names]
    return {name: (after - before) * 1000 for name, (before, after) in zip(steps, pairwise(times), strict=True)}
