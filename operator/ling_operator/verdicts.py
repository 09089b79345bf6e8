"""The conditions GPUAllocated and StandbyReady of a LingDeployment, as verdicts. Pure.

GPUAllocated tells "there is no device" from "there is one, and the engine is not ready yet": people do different things
about the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_api.v1alpha1 import WARM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_operator.slotfacts import SlotFacts

type Verdict = tuple[str, bool, str, str]  # type, true, reason, message

_SAYS: Final = (  # what the scheduler says, and what it means
    ("device class", "does not exist", "NoDeviceClass"),
    ("cannot allocate all claims", "", "InsufficientCapacity"),
    ("resourceclaim not available", "", "InsufficientCapacity"),
    (f"Insufficient {names.RESOURCE}", "", "NoAgent"),
    ("Insufficient", "", "InsufficientCapacity"),
    ("Too many pods", "", "InsufficientCapacity"),
)


def _why(trouble: str) -> str:
    """The reason for a pod that no node takes."""
    return next((reason for first, second, reason in _SAYS if first in trouble and second in trouble), "Unschedulable")


def lacks_capacity(trouble: str) -> bool:
    """Whether some node would take the pod if others left it; a node without agent is no such node."""
    return _why(trouble.replace(f"Insufficient {names.RESOURCE}", "")) == "InsufficientCapacity"


def _without(facts: SlotFacts) -> tuple[str, str] | None:
    """Why a slot has no GPU, None when it has."""
    gpu = facts.slot.spec.gpu
    pods = [one for one in (facts.slot_pod, *facts.live_engines) if one is not None and one.live]
    waiting = next((one for one in pods if one.unschedulable), None)
    if gpu.claimed and facts.claim is not None and facts.claim.allocated:
        return None
    if gpu.plugged and any(one.node for one in facts.live_engines):
        return None
    if waiting is not None:
        return _why(waiting.trouble), f"{waiting.name}: {waiting.trouble}"
    return "ClaimPending", f"{facts.name}: nobody has tried to place it yet"


def gpu_allocated(facts: Sequence[SlotFacts]) -> Verdict | None:
    """None where no GPU is asked for."""
    asking = [one for one in facts if one.slot.spec.gpu.claimed or one.slot.spec.gpu.plugged]
    if not asking:
        return None
    for one in asking:
        found = _without(one)
        if found is not None:
            return names.GPU_ALLOCATED, False, *found
    devices = [f"{one.name}: {', '.join(one.claim.devices)}" for one in asking if one.claim is not None]
    return names.GPU_ALLOCATED, True, "Allocated", "; ".join(devices) or "every engine has its GPUs"


def standby_ready(facts: Sequence[SlotFacts]) -> Verdict | None:
    """None where no standby is asked for."""
    asking = [one for one in facts if one.slot.spec.standby.replicas and not one.slot.spec.spare]
    for one in asking:
        wanted = one.slot.spec.standby
        roles = ("warm",) if wanted.mode == WARM else ("warm", "gated")
        said = [one.reported(pod) for pod in one.live_engines if pod is not one.active]
        ready = sum(engine is not None and engine.role in roles for engine in said)
        if ready < wanted.replicas:
            message = f"{one.name}: {ready} of {wanted.replicas} are {wanted.mode.lower()}"
            detail = one.message()
            return names.STANDBY_READY, False, f"Not{wanted.mode}", f"{message}: {detail}" if detail else message
    if not asking:
        return None
    return names.STANDBY_READY, True, asking[0].slot.spec.standby.mode, "every slot has its standby engines"
