"""Warm standbys: how many engines are kept ready beside the active one, which, and when they must go.

A standby is of the active engine's revision, since it is the active's death that it waits for; one of another revision
waits for a wish. It is let go only when it fits beside all that is there, and gives way to whoever is wished for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .facts import Launcher, Role
from .gate import committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .facts import Slot

COMING = (Role.STARTING, Role.WARM)


def kept(slot: Slot, active: Launcher | None) -> list[Launcher]:
    """The standbys that are to stay: warm ones first, then who came first, as many as are asked for."""
    if slot.spec is None or active is None or slot.ending:
        return []
    fit = [
        each
        for each in slot.launchers.values()
        if each.role in COMING and each.serves and each.revision == active.revision and not _goes(each)
    ]
    return sorted(fit, key=lambda each: (each.role is not Role.WARM, each.order))[: slot.spec.standbys]


def missing(slot: Slot, active: Launcher | None) -> int:
    """How many warm standbys are asked for and not there, whatever the reason."""
    if slot.spec is None or active is None or slot.ending or slot.recovering:
        return 0
    return slot.spec.standbys - sum(each.role is Role.WARM for each in kept(slot, active))


def next_to_go(slot: Slot, active: Launcher, eligible: Callable[[Launcher], bool]) -> tuple[Launcher | None, str]:
    """The gated launcher that becomes a standby now; without one, the sentence that says what did not fit."""
    if slot.spec is None or len(kept(slot, active)) >= slot.spec.standbys:
        return None, ""
    gated = [x for x in slot.launchers.values() if x.revision == active.revision and eligible(x)]
    for each in sorted(gated, key=lambda x: (x.deaths, x.order)):
        room = committed(slot, each)
        if room.fits:
            return each, ""
        return None, f"{each.pod} waits as standby: {room.sentence}"
    return None, ""


def may_give_way(slot: Slot, candidate: Launcher, active: Launcher | None) -> list[Launcher]:
    """Standbys whose room a wished launcher may have, so that the active one need not stop for it."""
    return [
        each
        for each in slot.launchers.values()
        if each.role in COMING and each.serves and each.uid != candidate.uid and each is not active and each.stream
    ]


def _goes(launcher: Launcher) -> bool:
    return launcher.leaving or launcher.stop_due or launcher.stopped
