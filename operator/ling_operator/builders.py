"""Every object that the operator makes, but for pods, field by field. Pure: the same input gives the same manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_api import names
from ling_operator import devices

if TYPE_CHECKING:
    from ling_api.v1alpha1 import EnginePart, LingSlotSpec
    from ling_operator.views import Observed, SlotView


def labels_of(deployment: str, **more: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ling",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/managed-by": "ling-operator",
        names.LABEL_DEPLOYMENT: deployment,
        **more,
    }


def owner_of(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    reference = {"apiVersion": names.API_VERSION, "kind": kind, "name": name, "uid": uid}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def revision_name(deployment: str, revision: str) -> str:
    return f"{deployment}-{revision}"


def build_revision(observed: Observed, revision: str, number: int, part: EnginePart, image: str) -> dict[str, Any]:
    """The ControllerRevision that keeps a revision's engine part as its user wrote it, and the image it stands for."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(observed.name, revision),
            "namespace": observed.namespace,
            "labels": labels_of(observed.name, **{names.LABEL_REVISION: revision}),
            "annotations": {names.ANNOTATION_IMAGE: image},
            "ownerReferences": owner_of("LingDeployment", observed.name, observed.uid),
        },
        "revision": number,
        "data": part.to_dict(),
    }


def build_service(observed: Observed, port: int) -> dict[str, Any]:
    """The address that clients use. Not-ready pods stay in it: a keeper's restart must not take the address away."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": observed.name,
            "namespace": observed.namespace,
            "labels": labels_of(observed.name),
            "ownerReferences": owner_of("LingDeployment", observed.name, observed.uid),
        },
        "spec": {
            "selector": {names.LABEL_DEPLOYMENT: observed.name, names.LABEL_SERVING: "true"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "http", "port": port, "targetPort": names.SERVE_PORT, "protocol": "TCP"}],
        },
    }


def build_claim(observed: Observed, slot: SlotView) -> dict[str, Any]:
    """The claim of a slot on its GPUs."""
    labels = labels_of(observed.name, **{names.LABEL_SLOT: slot.name})
    owner = owner_of("LingSlot", slot.name, slot.uid)
    return devices.build_claim(slot.name, observed.namespace, labels, owner, slot.spec.gpu)


def budget_name(deployment: str, component: str) -> str:
    return f"{deployment}-{component}s"


def budget_names(deployment: str) -> tuple[str, str]:
    return budget_name(deployment, names.COMPONENT_SLOT), budget_name(deployment, names.COMPONENT_ENGINE)


def build_budget(observed: Observed, component: str, replicas: int) -> dict[str, Any]:
    """A drain waits until as many others serve; what does not serve is never in its way."""
    labels = {names.LABEL_DEPLOYMENT: observed.name, names.LABEL_COMPONENT: component}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(observed.name, component),
            "namespace": observed.namespace,
            "labels": labels_of(observed.name),
            "ownerReferences": owner_of("LingDeployment", observed.name, observed.uid),
        },
        "spec": {
            "minAvailable": replicas,
            "selector": {"matchLabels": labels},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def build_slot(observed: Observed, name: str, spec: LingSlotSpec) -> dict[str, Any]:
    """A LingSlot; the same body makes and edits it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "LingSlot",
        "metadata": {
            "name": name,
            "namespace": observed.namespace,
            "labels": labels_of(observed.name, **{names.LABEL_SLOT: name}),
            "ownerReferences": owner_of("LingDeployment", observed.name, observed.uid),
        },
        "spec": spec.to_dict(),
    }
