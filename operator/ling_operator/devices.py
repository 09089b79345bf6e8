"""How a slot and its engines come to their GPUs: the claim, and what of it stands in the pods. Pure.

One named claim per slot, of the slot's own name. The slot pod refers to it and no container of it uses the device, so
the claim stays allocated while engines come and go; every engine pod refers to the same claim and uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_api.gpu import Gpu

REQUEST: Final = "gpu"  # the one request of the claim, and the name under which pods refer to it
NODE_TAINT: Final = "nvidia.com/gpu"  # on GPU nodes by custom; for claims nobody else adds the toleration


def _tolerations(gpu: Gpu) -> list[dict[str, str]]:
    return [dict(one) for one in gpu.tolerations]


def build_claim(
    slot: str, namespace: str, labels: dict[str, str], owner: Sequence[dict[str, Any]], gpu: Gpu
) -> dict[str, Any]:
    """The ResourceClaim of a slot. Its spec can never be changed: another `gpu` is another slot."""
    exactly: dict[str, Any] = {
        "deviceClassName": gpu.device_class,
        "allocationMode": "ExactCount",
        "count": gpu.count,
    }
    if gpu.tolerations:
        exactly["tolerations"] = _tolerations(gpu)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": slot, "namespace": namespace, "labels": labels, "ownerReferences": list(owner)},
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
    }


def pod_claims(slot: str, gpu: Gpu) -> dict[str, Any]:
    """What a slot pod and an engine pod have in their spec for the claim."""
    return {"resourceClaims": [{"name": REQUEST, "resourceClaimName": slot}]} if gpu.claimed else {}


def pod_tolerations(gpu: Gpu) -> list[dict[str, str]]:
    """Taints of nodes that pods with a GPU do not mind."""
    if not gpu.claimed and not gpu.plugged:
        return []
    return [{"key": NODE_TAINT, "operator": "Exists", "effect": "NoSchedule"}, *_tolerations(gpu)]


def container_resources(gpu: Gpu, resources: dict[str, Any]) -> dict[str, Any]:
    """The engine container's resources with its GPUs."""
    if gpu.claimed:
        return {**resources, "claims": [{"name": REQUEST}]}
    if gpu.plugged:
        return {**resources, "limits": {**resources.get("limits", {}), gpu.resource: str(gpu.count)}}
    return resources
