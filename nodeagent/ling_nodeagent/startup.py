"""How long a server that starts may get no further, before it counts as hung. Pure.

Further is a phase, a time of a phase, or a bit more of a fill. Between them a healthy server may be silent for long: on
a fresh machine kernels are compiled for many minutes. So the measure is what starts of the same revision in the same
slot took at their slowest, and where no agent has seen one whole, half an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .facts import Launcher, Server, Slot

NOT_SEEN: Final = float("inf")
TIMES: Final = 3.0  # as long as the longest silence that was seen
SHORTEST, LONGEST = 120.0, 1800.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Of a server that starts: when it last got further, and its longest silence so far, in seconds."""

    since: float = 0.0
    longest: float = NOT_SEEN  # its beginning was not seen


def further(before: Server, after: Server, now: float) -> Server:
    """`after` with its silence, when it has got further than `before`."""
    if (before.phase, before.phases, before.progress) == (after.phase, after.phases, after.progress):
        return after
    return replace(after, silence=Silence(since=now, longest=_longest(before, now)))


def _longest(server: Server, now: float) -> float:
    return max(server.silence.longest, now - server.silence.since)


def patience(slot: Slot, launcher: Launcher) -> float:
    """Seconds. One that was told to leave the device to a busy engine has all of it."""
    seen = [x.silence for x in slot.launchers.values() if x.revision == launcher.revision and x.silence < NOT_SEEN]
    if not seen or launcher.yields:
        return LONGEST
    return min(max(TIMES * max(seen), SHORTEST), LONGEST)


def waits_for_others(slot: Slot, launcher: Launcher) -> bool:
    """For the answer to an attach (another one fills), or for a keeper to hold what it fills."""
    return bool(launcher.asks) or slot.keeper is None
