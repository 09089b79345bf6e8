"""A slot that is taken away, and a node that is left: who accepts for how long, and what no longer holds pods back.

Addresses reach clients later than a pod's end, so the last engine of such a slot goes on accepting for a while, as a
lame duck; how much later, only the clients tell that still come. And a node must become empty in time, whoever is
away: when the time is up, slot and engines stop being Ready, and the disruption budgets, which count Ready pods only,
let every eviction through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from . import decisions as do
from .facts import Launcher, Role

if TYPE_CHECKING:
    from .facts import Slot

RESTART: Final = 15.0  # seconds: the kubelet may know of a pod's deletion earlier than the agent does
ALIVE: Final = (Role.STARTING, Role.WARM, Role.ACTIVE)


def taken_away(slot: Slot) -> bool:
    """Whether somebody ends this slot in good order: operator, preStop of the slot pod, eviction of the last engine."""
    if slot.spec is not None and slot.spec.retiring:
        return True
    if slot.keeper is not None and slot.keeper.leaving and not _stays(slot):
        return True
    serving = [each for each in slot.launchers.values() if each.role is Role.ACTIVE]
    return slot.leaves_by is not None and bool(serving) and all(each.leaving for each in serving)


def _stays(slot: Slot) -> bool:
    """The kubelet runs preStop also to restart a container: then the pod stays, and nothing of the slot is given up.

    Unless whoever serves leaves too, which no container's restart makes them do: the node shuts down, or the API
    server's word of the pod's deletion has not come yet.
    """
    serving = [each for each in slot.launchers.values() if each.role in (Role.ACTIVE, Role.DRAINING)]
    if serving and all(each.leaving for each in serving):
        return False
    return slot.spec is not None and slot.spec.pod_stays and not (slot.gone or slot.ending)


def restarts_by(slot: Slot) -> float | None:
    """When a keeper that leaves, in a pod that nobody deletes, may go: what it holds, others hold too."""
    leaves = slot.keeper is not None and slot.keeper.leaving and not slot.keeper.released and _stays(slot)
    return slot.keeper.leaving_at + RESTART if slot.keeper is not None and leaves else None


def decide_lame_duck(slot: Slot, now: float) -> Slot:
    """Begins, ends or takes back the time of the lame duck."""
    if slot.recovering or slot.spec is None:
        return slot
    if not taken_away(slot):
        return slot if slot.lame_since is None else replace(slot, lame_since=None, lame_over=False)
    if slot.lame_since is None:
        slot = replace(slot, lame_since=now)
    until = lame_until(slot)
    if slot.lame_over or until is None:
        return slot
    nobody = not any(each.serves and each.role in ALIVE for each in slot.launchers.values())
    return replace(slot, lame_over=True) if nobody or now >= until else slot


def lame_until(slot: Slot) -> float | None:
    """When the lame duck's time is over: `lame_duck_seconds` after its begin, or after the last client that came anew.

    Who still comes has not learnt of the others yet: a load balancer is late, or the operator is. That counts for
    `graceSeconds`, until the node's time is up, and only where there are to be others: the operator takes the slot
    away, or the node is left.
    """
    if slot.lame_since is None or slot.spec is None:
        return None
    spec, until = slot.spec, slot.lame_since + slot.spec.lame_duck_seconds
    if not spec.retiring and slot.leaves_by is None:
        return until
    arrivals = [each.arrived_at for each in slot.launchers.values() if each.accepting and each.arrived_at is not None]
    most = until + spec.grace_seconds if slot.leaves_by is None else min(until + spec.grace_seconds, slot.leaves_by)
    return max(until, min(max(arrivals, default=slot.lame_since) + spec.lame_duck_seconds, most))


def lame(slot: Slot) -> bool:
    """Whether an engine that leaves goes on accepting although nobody can follow it."""
    return slot.lame_since is not None and not slot.lame_over


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
    return [time for time in (slot.leaves_by, lame_until(slot), restarts_by(slot)) if time is not None]
