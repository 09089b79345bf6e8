"""Whether the agent's own loop has been turning. Pure.

An agent that was held up (stopped, starved of CPU, swapped out, in a paused virtual machine) finds all its timers due
at once, before it has read what waits in its sockets. It must not take its own silence for that of the engines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from . import events
    from .facts import Launcher, Slot

LATE: Final = 1.0  # seconds beyond the longest pause that there ever is between two looks


class Attention:
    """`seen` at every look at the clock; looks are at most `pause` seconds apart while the loop turns."""

    def __init__(self, now: float, pause: float) -> None:
        self._at = now
        self._longest = pause + LATE

    def seen(self, now: float) -> bool:
        """Whether the loop had stood still for longer than the pause explains."""
        held_up, self._at = now - self._at > self._longest, now
        return held_up


def held_up(slot: Slot, event: events.HeldUp, now: float) -> Slot:
    """Every silence begins anew: nobody was there to hear a word."""
    slot = replace(slot, queue_since=None if slot.queue_since is None else now)
    for launcher in tuple(slot.launchers.values()):
        slot = slot.put(_heard(launcher, now))
    return slot


def _heard(launcher: Launcher, now: float) -> Launcher:
    launcher = replace(launcher, heard_at=now, progress_at=now, proved_at=now)
    server = launcher.server
    if server is None:
        return launcher
    again = server.killed_at if server.killed_at == float("-inf") else now  # it named a server that was to be dead
    dead_at, silence = now if server.dead else server.dead_at, replace(server.silence, since=now)
    return replace(launcher, server=replace(server, dead_at=dead_at, killed_at=again, silence=silence))
