"""The pod that tries a revision before a running engine is stopped for it. Pure.

It runs `ling-engine check` on the slot's node with the revision's image, flags and checkpoint. Where the slot's claim
is the revision's too, it holds that claim beside the running engine. Elsewhere it holds no device: SGLang is then told
which GPU to expect, namely the one that the slot's engines said they run on.

What it cannot see without a device: the driver, whether the image has kernels for that GPU, how much memory is free,
whether all ranks find each other. An engine that fails of those is given up after it was tried in earnest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.engine import SGLANG
from ling_api.quantity import parse_exact
from ling_operator.pods import engine_pod, engine_spec

if TYPE_CHECKING:
    from ling_api.v1alpha1 import EnginePart
    from ling_operator.views import Observed, SlotView

CHECK: Final = "check"  # the command of an engine that only says whether its settings are right
# it runs beside the engine that it must not disturb, so it asks for almost nothing and may use what an engine may
_ASKS: Final = {"cpu": "10m", "memory": "64Mi"}
_KEPT: Final = (*_ASKS, "ephemeral-storage", names.RESOURCE)  # devices and huge pages are the running engine's
_NO_GPU: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}  # images say "all", and some nodes listen to it


def holds_claim(slot: SlotView, part: EnginePart) -> bool:
    """Whether the check may hold the slot's claim: only if the revision's engines will hold the same."""
    return slot.spec.gpu.claimed and slot.spec.gpu == part.gpu


def _same_kind(slot: SlotView, part: EnginePart) -> bool:
    """Whether the revision's GPUs are of the kind that the slot has, however many."""
    had, wants = slot.spec.gpu, part.gpu
    return (had.allocation, had.device_class, had.resource) == (wants.allocation, wants.device_class, wants.resource)


def can_check(slot: SlotView, part: EnginePart) -> bool:
    """Whether a check tells anything here: SGLang's needs the GPU, or must know which one there will be."""
    if part.engine.runtime != SGLANG or holds_claim(slot, part):
        return True
    return bool(slot.status.compute_capability) and _same_kind(slot, part)


def _resources(resources: dict[str, Any], *, claim: bool) -> dict[str, Any]:
    limits = {key: value for key, value in resources["limits"].items() if key in _KEPT}
    asked = {key: value for key, value in resources.get("requests", {}).items() if key in _KEPT}
    for key, little in _ASKS.items():
        said = [value for value in (asked.get(key), limits.get(key)) if value is not None]
        if said:
            asked[key] = min((*said, little), key=parse_exact)
    claims = {"claims": resources["claims"]} if claim and "claims" in resources else {}
    return {"limits": limits, **claims, **({"requests": asked} if asked else {})}


def check_pod_name(slot: str, revision: str) -> str:
    return f"{slot}-{revision}-{CHECK}"


def build_check_pod(observed: Observed, slot: SlotView, node: str, revision: str, part: EnginePart) -> dict[str, Any]:
    """The pod that tries a revision's image and flags where an engine must be stopped for it. It stays, ended."""
    spec = engine_spec(observed, slot, node, revision, part, CHECK)
    container, claim = spec["containers"][0], holds_claim(slot, part)
    del container["livenessProbe"], container["readinessProbe"]
    container["resources"] = _resources(container["resources"], claim=claim)
    if not claim:
        spec.pop("resourceClaims", None)
        container["env"] = [*(one for one in container.get("env", ()) if one["name"] != _NO_GPU["name"]), _NO_GPU]
        if part.engine.runtime == SGLANG:
            container["args"].append(f"--for-gpu={slot.status.compute_capability}")
    name = check_pod_name(slot.name, revision)
    pod = engine_pod(observed, slot, name, revision, part, {**spec, "restartPolicy": "Never"})
    pod["metadata"]["labels"][names.LABEL_COMPONENT] = names.COMPONENT_CHECK
    return pod
