"""The conditions GPUAllocated and StandbyReady of a LingDeployment, as verdicts. Pure.

GPUAllocated tells "no node has so many devices" from "others have them" from "it has them, and the engine is not ready
yet": people do different things about the three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_api.v1alpha1 import WARM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_api.gpu import Gpu
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


def too_few(gpu: Gpu, devices: Mapping[str, int] | None) -> tuple[str, str] | None:
    """Reason and sentence when no node has so many devices, taken or not; None when one may have."""
    if devices is None or max(devices.values(), default=0) >= gpu.count:
        return None
    what = f"of device class {gpu.device_class}" if gpu.claimed else gpu.resource
    most = max(devices.values(), default=0)
    if not most:
        return "NoDevices", f"no node has a device {what}; is the driver running on the GPU nodes?"
    return "NoNodeLargeEnough", f"no node has {gpu.count} devices {what}; the largest has {most}: lower gpu.count"


def _without(facts: SlotFacts, devices: Mapping[str, int] | None) -> tuple[str, str] | None:
    """Why a slot has no GPU, None when it has."""
    gpu = facts.slot.spec.gpu
    pods = [one for one in (facts.slot_pod, *facts.live_engines) if one is not None and one.live]
    waiting = next((one for one in pods if one.unschedulable), None)
    if gpu.claimed and facts.claim is not None and facts.claim.allocated:
        return None
    if gpu.plugged and any(one.node for one in facts.live_engines):
        return None
    if waiting is not None:
        few = too_few(gpu, devices)
        if few is not None and lacks_capacity(waiting.trouble):
            return few[0], f"{waiting.name}: {few[1]}"
        return _why(waiting.trouble), f"{waiting.name}: {waiting.trouble}"
    return "ClaimPending", f"{facts.name}: nobody has tried to place it yet"


def gpu_allocated(facts: Sequence[SlotFacts], wanted: Gpu | None, devices: Mapping[str, int] | None) -> Verdict | None:
    """None where no GPU is asked for. `devices` by node are for the `gpu` that is wanted now."""
    asking = [one for one in facts if one.slot.spec.gpu.claimed or one.slot.spec.gpu.plugged]
    if not asking:
        return None
    for one in asking:
        found = _without(one, devices if one.slot.spec.gpu == wanted else None)
        if found is not None:
            return names.GPU_ALLOCATED, False, *found
    given = [f"{one.name}: {', '.join(one.claim.devices)}" for one in asking if one.claim is not None]
    return names.GPU_ALLOCATED, True, "Allocated", "; ".join(given) or "every engine has its GPUs"


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
