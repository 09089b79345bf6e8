"""At which step a slot that is being changed stands, in words for people, and how full its memory is. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ling_operator.slotsteps import COMING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_operator.slotfacts import SlotFacts

FILLED: Final = re.compile(r"\b\d+% filled")  # what the agent says of a fill


def but_fills(text: str) -> str:
    """The text without how far a fill is: that alone is no news."""
    return FILLED.sub("filled", text)


def stage(facts: SlotFacts, wanted: str) -> str:
    """The step in words; "" when nothing is left to do for the wanted revision."""
    if facts.updated(wanted):
        return "the old engine ends" if facts.old_engines(wanted) else ""
    new = [one for one in facts.live_engines if one.revision == wanted]
    said = next((told for one in new if (told := facts.reported(one)) is not None), None)
    if said is None:
        return "the new engine is checked" if any(one.phase == "Running" for one in new) else "a new engine is made"
    if not facts.old_engines(wanted):
        return "the new engine starts"
    comes = said.role == "warm" or said.phase in COMING
    if facts.active is None:
        return "the new engine takes over (swap: requests wait)"
    return f"the new engine takes over{' (handover)' if comes else ''}"


def stages(slots: Sequence[SlotFacts], wanted: str) -> str:
    """Of the first slot that is being changed, with its name; "" when there is none."""
    for one in slots:
        if one.slot.spec.revision == wanted and not one.slot.spec.spare and (said := stage(one, wanted)):
            fill = FILLED.search(one.slot.status.message)
            return f"{one.name}: {said}{', ' + fill[0] if fill else ''}"
    return ""
