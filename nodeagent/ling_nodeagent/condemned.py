"""Condemned sets: bytes that an engine found wrong, or of which two engines in a row died, are given to nobody again.

The engines that read such a set keep it until they end; then it is dropped, and the next cohort fills it anew. So bad
bytes never make a crash loop, and nobody has to help.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .facts import SetState
from .mappings import with_item, without

if TYPE_CHECKING:
    from .facts import Launcher, Slot, WeightSet

REASON: Final = "WeightsCondemned"
CHECK_FAILED: Final = 5  # exit codes of ling_api.errors: AttachCheckFailed
DEVICE_ERROR: Final = 6  # DeviceError
IN_A_ROW: Final = 60.0  # seconds between two deaths by a device's error that are one story
SHOWN: Final = 60.0  # seconds that status tells of it at least


def exited(slot: Slot, launcher: Launcher, server: str, exit_code: int, now: float) -> Slot:
    """A server of that launcher ended with that code; what it had attached may be the reason."""
    late = launcher.last_sets if server == launcher.last_server else frozenset()
    for held in tuple(slot.sets.values()):
        if held.state is not SetState.SEALED or not (server in held.attached or held.set in late):
            continue
        reason = _verdict(held, exit_code, now)
        error_at = now if exit_code == DEVICE_ERROR else None
        slot = slot.put_set(replace(held, device_error_at=error_at, condemned=held.condemned or reason))
        if reason and not held.condemned:
            said = f"the {held.role or 'unknown'} weights of rank {held.rank} are filled anew: {reason}"
            doomed = with_item(slot.doomed, held.set, reason)
            slot = replace(slot, condemned=said, condemned_at=now, doomed=doomed)
    return slot


def _verdict(held: WeightSet, exit_code: int, now: float) -> str:
    if exit_code == CHECK_FAILED:
        return "an engine found them to be other than their manifest says"
    last = held.device_error_at
    if exit_code == DEVICE_ERROR and last is not None and now - last <= IN_A_ROW:
        return f"two engines in a row died with a device error within {IN_A_ROW:.0f} s"
    return ""


def holders(slot: Slot, launcher: Launcher) -> list[Launcher]:
    """The launchers whose servers read a condemned set that this one needs: it is filled when they have ended."""
    needed = {wanted.set for wanted in launcher.weights}
    readers: set[str] = set()
    for held in slot.sets.values():
        if held.condemned and held.state is SetState.SEALED and held.set in needed:
            readers |= held.attached
    return [each for each in slot.launchers.values() if each.server is not None and each.server.id in readers]


def recalled(slot: Slot, held: WeightSet) -> WeightSet:
    """A sealed copy that somebody gave back: it is what it was under an earlier agent."""
    return replace(held, condemned=held.condemned or slot.doomed.get(held.set, ""))


def filled_anew(slot: Slot, name: str) -> Slot:
    """What comes now are other bytes."""
    return replace(slot, doomed=without(slot.doomed, name)) if name in slot.doomed else slot


def shown(slot: Slot, now: float) -> bool:
    """Whether status tells of it: while such a set is there, and for a while."""
    return bool(slot.condemned) and (
        now < slot.condemned_at + SHOWN or any(held.condemned for held in slot.sets.values())
    )


def state_of(held: WeightSet) -> str:
    """The set's state for people."""
    return "condemned" if held.condemned and held.state is SetState.SEALED else held.state.value
