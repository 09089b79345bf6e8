"""A slot that is taken away, and a node that is left: who accepts for how long, and what no longer holds pods back.

Addresses reach clients later than a pod's end, so the last engine of such a slot goes on accepting for a while, as a
lame duck. And a node must become empty in time, whoever is away: when the time is up, slot and engines stop being
Ready, and the disruption budgets, which count Ready pods only, let every eviction through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from . import decisions as do
from .facts import Launcher, Role

if TYPE_CHECKING:
    from .facts import Slot

ALIVE: Final = (Role.STARTING, Role.WARM, Role.ACTIVE)


def taken_away(slot: Slot) -> bool:
    """Whether somebody ends this slot in good order: operator, preStop of the slot pod, eviction of the last engine."""
    if slot.spec is not None and slot.spec.retiring:
        return True
    if slot.keeper is not None and slot.keeper.leaving:
        return True
    serving = [each for each in slot.launchers.values() if each.role is Role.ACTIVE]
    return slot.leaves_by is not None and bool(serving) and all(each.leaving for each in serving)


def decide_lame_duck(slot: Slot, now: float) -> Slot:
    """Begins, ends or takes back the time of the lame duck."""
    if slot.recovering or slot.spec is None:
        return slot
    if not taken_away(slot):
        return slot if slot.lame_until is None else replace(slot, lame_until=None, lame_over=False)
    if slot.lame_until is None:
        slot = replace(slot, lame_until=now + slot.spec.lame_duck_seconds)
    if slot.lame_over or slot.lame_until is None:
        return slot
    nobody = not any(each.serves and each.role in ALIVE for each in slot.launchers.values())
    return replace(slot, lame_over=True) if nobody or now >= slot.lame_until else slot


def lame(slot: Slot) -> bool:
    """Whether an engine that leaves goes on accepting although nobody can follow it."""
    return slot.lame_until is not None and not slot.lame_over


def overdue(slot: Slot, now: float) -> bool:
    """Whether nothing may hold the pods of this slot on their node any more."""
    return slot.leaves_by is not None and now >= slot.leaves_by


def decide_hold_back(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    due = overdue(slot, now)
    for each in tuple(slot.launchers.values()):
        if each.stream and each.held_back is not due:
            out.append(_hold_back(each, due))
            slot = slot.put(replace(each, held_back=due))
    return slot, out


def _hold_back(launcher: Launcher, due: bool) -> do.HoldBack:
    reason = "the node is left and the time for a replacement is up" if due else "the node is not left any more"
    return do.HoldBack(stream=launcher.stream, pod=launcher.pod, held_back=due, reason=reason)


def times(slot: Slot) -> list[float]:
    """When time alone changes something."""
    return [time for time in (slot.leaves_by, slot.lame_until) if time is not None]
