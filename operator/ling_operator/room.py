"""Whether room is what a waiting slot lacks, and whether a node could hold it if it were empty. Pure.

What serves is given up for room only. A pod that no node takes for another reason (a device class or a node label that
does not exist, no agent) would not be taken afterwards either, nor one that is larger than the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.quantity import parse_exact
from ling_operator.pods import KEEPER_MEMORY
from ling_operator.verdicts import lacks_capacity

if TYPE_CHECKING:
    from fractions import Fraction

    from ling_api.enginepart import EnginePart
    from ling_api.gpu import Gpu
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.surroundings import NodeView


def needs(memory: int, gpu: Gpu, part: EnginePart | None) -> dict[str, Fraction]:
    """What a slot pod and one engine pod ask of their node; devices of a ResourceClaim are not counted by nodes."""
    resources = part.engine.resources.to_dict() if part is not None else {}
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    found = {name: parse_exact(value) for name, value in asked.items()}
    found["memory"] = found.get("memory", parse_exact(0)) + memory + KEEPER_MEMORY
    if gpu.plugged:
        found[gpu.resource] = parse_exact(gpu.count)
    return found


def could_hold(node: NodeView | None, needed: dict[str, Fraction]) -> bool:
    """Whether the node would have room if it were empty; True where nobody has said what it has."""
    if node is None or not node.allocatable:
        return True
    return all(amount <= parse_exact(node.allocatable.get(name, 0)) for name, amount in needed.items())


def waits_for_room(facts: SlotFacts, *, engines_too: bool) -> float:
    """Since when room is all that the slot waits for; 0 when it does not."""
    pod = facts.slot_pod
    waiting = [one for one in (pod, *facts.live_engines) if one is not None and one.waits_since]
    return facts.waits_since(engines_too=engines_too) if all(lacks_capacity(one.trouble) for one in waiting) else 0.0
