"""Turns: a standby leaves the device to the active engine while that one has a request in flight.

Standbys are told when the active engine becomes busy and when it has been idle for a moment; what they do meanwhile is
at most one part in twenty of the time (the engine's own rule). Start-up itself needs no turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from . import choose
from . import decisions as do
from .facts import Role

if TYPE_CHECKING:
    from .facts import Slot

IDLE: Final = 1.0  # seconds without a request before standbys may work again
STANDBY: Final = (Role.STARTING, Role.WARM)


def busy_until(slot: Slot) -> float | None:
    """Until when the active engine counts as busy; infinite while it has a request, None when it has none."""
    active = choose.active(slot)
    if active is None or active.server is None or active.server.dead:
        return None
    if active.performance.in_flight:
        return float("inf")
    return active.progress_at + IDLE if active.performance.requests else None


def decide_turns(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    until = busy_until(slot)
    busy = until is not None and now < until
    for each in tuple(slot.launchers.values()):
        wanted = busy and each.role in STANDBY
        if each.stream and each.server is not None and each.yields is not wanted:
            out.append(do.Turn(stream=each.stream, busy=wanted))
            slot = slot.put(replace(each, yields=wanted))
    return slot, out


def times(slot: Slot) -> list[float]:
    """When the active engine has been idle for long enough."""
    until = busy_until(slot)
    return [until] if until is not None and until != float("inf") else []
