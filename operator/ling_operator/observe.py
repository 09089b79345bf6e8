"""Reads one LingDeployment and everything below it from the API server into one frozen value."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_operator.views import (
    Observed,
    deployment_spec,
    pod_view,
    previous_view,
    revision_view,
    slot_view,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ling_operator.kube import Kube

AGENTS: Final = f"{names.LABEL_COMPONENT}={names.COMPONENT_AGENT}"


def ready_agents(pods: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The nodes whose agent is Ready."""
    return frozenset(one.node for one in map(pod_view, pods) if one.ready and one.node and not one.deleting)


async def observe(kube: Kube, namespace: str, name: str, agent_namespace: str) -> Observed | None:
    """All that a plan needs, read from the API server now; None when the LingDeployment is gone."""
    body = await kube.get("LingDeployment", namespace, name)
    if body is None:
        return None
    ours = f"{names.LABEL_DEPLOYMENT}={name}"
    slots, pods, revisions, service, agents = await asyncio.gather(
        kube.list("LingSlot", namespace, ours),
        kube.list("Pod", namespace, ours),
        kube.list("ControllerRevision", namespace, ours),
        kube.get("Service", namespace, name),
        kube.list("Pod", agent_namespace, AGENTS),
    )
    meta = body["metadata"]
    uid = meta["uid"]
    spec, complaint = deployment_spec(body)
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
        slots=tuple(slot_view(item, name, uid) for item in slots),
        pods=tuple(pod_view(item) for item in pods),
        service=service,
        agents=ready_agents(agents),
    )
