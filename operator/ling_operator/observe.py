"""Reads one LingDeployment and everything below it from the API server into one frozen value."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_operator import builders, inventory
from ling_operator.slotfacts import node_name
from ling_operator.surroundings import claim_view, node_view
from ling_operator.views import (
    Observed,
    deployment_spec,
    pod_view,
    previous_view,
    revision_view,
    slot_view,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ling_api.v1alpha1 import LingDeploymentSpec
    from ling_operator.kube import Verbs
    from ling_operator.settings import Settings
    from ling_operator.surroundings import NodeView
    from ling_operator.views import PodView, SlotView

AGENTS: Final = f"{names.LABEL_COMPONENT}={names.COMPONENT_AGENT}"


def ready_agents(pods: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The nodes whose agent is Ready."""
    return frozenset(one.node for one in map(pod_view, pods) if one.ready and one.node and not one.deleting)


async def _nodes(
    kube: Verbs, slots: Iterable[SlotView], pods: Iterable[PodView], leaving_taints: Collection[str]
) -> dict[str, NodeView]:
    """The nodes on which slots are or must not be; few objects each, since a list of all nodes would be long."""
    of_slot: dict[str, list[PodView]] = {}
    for pod in pods:
        of_slot.setdefault(pod.slot_uid, []).append(pod)
    avoided = {name for found in of_slot.values() for one in found for name in one.avoids}
    wanted = sorted(({node_name(one, of_slot.get(one.uid, [])) for one in slots} | avoided) - {""})
    bodies = await asyncio.gather(*(kube.get("Node", "", name) for name in wanted))
    return {name: node_view(name, body, leaving_taints) for name, body in zip(wanted, bodies, strict=True)}


async def _devices(kube: Verbs, spec: LingDeploymentSpec | None, pods: Iterable[PodView]) -> Mapping[str, int] | None:
    """What nodes have of the devices that are asked for; looked up only while a pod finds no place."""
    if spec is None or not any(one.unschedulable for one in pods):
        return None
    gpu = spec.part.gpu
    if gpu.plugged:
        return inventory.pluggable(await kube.list("Node", ""), gpu.resource)
    if gpu.claimed:
        device_class = await kube.get("DeviceClass", "", gpu.device_class)
        return inventory.claimable(device_class, await kube.list("ResourceSlice", ""))
    return None


async def observe(kube: Verbs, namespace: str, name: str, settings: Settings, now: float) -> Observed | None:
    """All that a plan needs, read from the API server now; None when the LingDeployment is gone."""
    body = await kube.get("LingDeployment", namespace, name)
    if body is None:
        return None
    ours = f"{names.LABEL_DEPLOYMENT}={name}"
    lists = asyncio.gather(
        kube.list("LingSlot", namespace, ours),
        kube.list("Pod", namespace, ours),
        kube.list("ControllerRevision", namespace, ours),
        kube.list("ResourceClaim", namespace, ours),
    )
    service, agents, budgets, (slots, pods, revisions, claims) = await asyncio.gather(
        kube.get("Service", namespace, name),
        kube.list("Pod", settings.agent_namespace, AGENTS),
        asyncio.gather(*(kube.get("PodDisruptionBudget", namespace, one) for one in builders.budget_names(name))),
        lists,
    )
    meta = body["metadata"]
    uid = meta["uid"]
    spec, complaint = deployment_spec(body)
    slot_views = tuple(slot_view(item, name, uid) for item in slots)
    pod_views = tuple(pod_view(item) for item in pods)
    return Observed(
        name=name,
        namespace=namespace,
        uid=uid,
        generation=meta.get("generation") or 0,
        resource_version=meta["resourceVersion"],
        deleting=bool(meta.get("deletionTimestamp")),
        spec=spec,
        complaint=complaint,
        previous=previous_view(body.get("status") or {}),
        revisions=tuple(one for one in (revision_view(item, uid) for item in revisions) if one is not None),
        slots=slot_views,
        pods=pod_views,
        service=service,
        agents=ready_agents(agents),
        claims=tuple(claim_view(item) for item in claims),
        devices=await _devices(kube, spec, pod_views),
        nodes=await _nodes(kube, slot_views, pod_views, settings.leaving_taints),
        budgets=dict(zip(builders.budget_names(name), budgets, strict=True)),
        now=now,
    )
