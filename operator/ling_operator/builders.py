"""Every object that the operator makes, field by field. Pure: the same input gives the same manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api import names

if TYPE_CHECKING:
    from ling_api.v1alpha1 import EnginePart, LingSlotSpec
    from ling_operator.settings import Images
    from ling_operator.views import Observed, PodView, SlotView

KEEPER_MEMORY: Final = 64 << 20  # what the keeper itself needs beside the regions that it holds
SLOT_MARGIN: Final = 30  # seconds that a slot pod may live longer than its engines' grace
ENGINE_MARGIN: Final = 15
USER: Final = 65532

_CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def _labels(deployment: str, **more: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "ling",
        "app.kubernetes.io/instance": deployment,
        "app.kubernetes.io/managed-by": "ling-operator",
        names.LABEL_DEPLOYMENT: deployment,
        **more,
    }


def _owner(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    reference = {"apiVersion": names.API_VERSION, "kind": kind, "name": name, "uid": uid}
    return [{**reference, "controller": True, "blockOwnerDeletion": True}]


def _probe(path: str, **more: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": names.PROBE_PORT}, **more}


def _on_node(node: str) -> dict[str, Any]:
    """Affinity to exactly this node, by its name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def revision_name(deployment: str, revision: str) -> str:
    return f"{deployment}-{revision}"


def build_revision(observed: Observed, revision: str, number: int, part: EnginePart) -> dict[str, Any]:
    """The ControllerRevision that keeps a revision's engine part, its image resolved."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(observed.name, revision),
            "namespace": observed.namespace,
            "labels": _labels(observed.name, **{names.LABEL_REVISION: revision}),
            "ownerReferences": _owner("LingDeployment", observed.name, observed.uid),
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
            "labels": _labels(observed.name),
            "ownerReferences": _owner("LingDeployment", observed.name, observed.uid),
        },
        "spec": {
            "selector": {names.LABEL_DEPLOYMENT: observed.name, names.LABEL_SERVING: "true"},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "http", "port": port, "targetPort": names.SERVE_PORT, "protocol": "TCP"}],
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
            "labels": _labels(observed.name, **{names.LABEL_SLOT: name}),
            "ownerReferences": _owner("LingDeployment", observed.name, observed.uid),
        },
        "spec": spec.to_dict(),
    }


def _keeper(memory: str, image: str) -> dict[str, Any]:
    return {
        "name": "keeper",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "ling_nodeagent.keeper"],
        "ports": [
            {"name": "http", "containerPort": names.SERVE_PORT, "protocol": "TCP"},
            {"name": "probes", "containerPort": names.PROBE_PORT, "protocol": "TCP"},
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": memory},
            "limits": {"memory": memory, names.RESOURCE: "1"},
        },
        "livenessProbe": _probe("/livez", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "readinessProbe": _probe("/readyz", periodSeconds=1, timeoutSeconds=2, failureThreshold=2),
        "lifecycle": {"preStop": {"exec": {"command": ["python", "-m", "ling_nodeagent.keeper", "leave"]}}},
        "securityContext": {**_CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
    }


def build_slot_pod(observed: Observed, slot: SlotView, images: Images, node: str = "") -> dict[str, Any]:
    """The keeper's pod. `node` pins it: a lost slot pod must come back to where its engines are."""
    memory = str(slot.spec.capacity + KEEPER_MEMORY)
    labels = {names.LABEL_SLOT: slot.name, names.LABEL_COMPONENT: names.COMPONENT_SLOT}
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": slot.spec.grace_seconds + SLOT_MARGIN,
        "securityContext": dict(_POD_SECURITY),
        "containers": [_keeper(memory, images.nodeagent)],
    }
    if node:
        spec |= {"affinity": _on_node(node), "tolerations": [dict(_CORDONED)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": slot.name,
            "namespace": observed.namespace,
            "labels": _labels(observed.name, **labels),
            "ownerReferences": _owner("LingSlot", slot.name, slot.uid),
        },
        "spec": spec,
    }


def model_path(part: EnginePart) -> str:
    """Where an engine finds its checkpoint."""
    return _inside(names.PVC_DIR if part.model.claim else names.MODELS_DIR, part.model.path)


def draft_path(part: EnginePart) -> str:
    """Where an engine finds its external draft, "" when none is named."""
    draft = part.decoding.draft
    if draft is None:
        return ""
    if not draft.claim:
        return _inside(names.MODELS_DIR, draft.path)
    return _inside(names.PVC_DIR if draft.claim == part.model.claim else names.DRAFT_DIR, draft.path)


def _inside(root: str, path: str) -> str:
    return f"{root}/{path}".rstrip("/")


def _claims(part: EnginePart) -> dict[str, tuple[str, str]]:
    """Volumes of an engine pod: name -> claim, where it is mounted. One claim is one volume."""
    found, draft = {}, part.decoding.draft
    if part.model.claim:
        found["checkpoint"] = (part.model.claim, names.PVC_DIR)
    if draft is not None and draft.claim not in ("", part.model.claim):
        found["draft"] = (draft.claim, names.DRAFT_DIR)
    return found


def _decoding_args(part: EnginePart) -> list[str]:
    """Nothing for plain decoding: an engine's image may be older than the flags."""
    decoding = part.decoding
    if decoding.algorithm == "None":
        return []
    flags = {
        "--num-steps": decoding.num_steps,
        "--num-draft-tokens": decoding.num_draft_tokens,
        "--draft": draft_path(part),
    }
    return [f"--decoding={decoding.algorithm}", *(f"{flag}={value}" for flag, value in flags.items() if value)]


def engine_args(deployment: str, revision: str, part: EnginePart, grace_seconds: int) -> list[str]:
    """The command line of `ling-engine`. The runtime is the image's own choice."""
    stated = [f"--model-revision={part.model.revision}"] if part.model.revision else []
    return [
        "run",
        f"--model={model_path(part)}",
        f"--revision={revision}",
        *stated,
        f"--context-length={part.engine.context_length}",
        f"--max-queue={part.engine.max_queue}",
        f"--grace-seconds={grace_seconds}",
        f"--served-model-name={deployment}",
        *_decoding_args(part),
    ]


def _engine(observed: Observed, revision: str, part: EnginePart, grace_seconds: int) -> dict[str, Any]:
    resources = part.engine.resources.to_dict()
    limits = {**resources.get("limits", {}), names.RESOURCE: "1"}

    container: dict[str, Any] = {
        "name": "engine",
        "image": part.engine.image,
        "imagePullPolicy": "IfNotPresent",
        "args": engine_args(observed.name, revision, part, grace_seconds),
        "ports": [{"name": "probes", "containerPort": names.PROBE_PORT, "protocol": "TCP"}],
        "resources": {**resources, "limits": limits},
        "livenessProbe": _probe(
            "/livez", initialDelaySeconds=30, periodSeconds=10, timeoutSeconds=5, failureThreshold=6
        ),
        "readinessProbe": _probe("/readyz", periodSeconds=1, timeoutSeconds=2, failureThreshold=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(_CONTAINER_SECURITY),
    }
    claims = _claims(part).items()
    if claims:
        container["volumeMounts"] = [{"name": name, "mountPath": at, "readOnly": True} for name, (_, at) in claims]
    return container


def engine_pod_name(slot: str, revision: str, number: int) -> str:
    return f"{slot}-{revision}-{number}"


def build_engine_pod(
    observed: Observed, slot: SlotView, slot_pod: PodView, revision: str, part: EnginePart, number: int
) -> dict[str, Any]:
    """An engine pod of one revision, on the node of its slot pod."""
    labels = {
        names.LABEL_SLOT: slot.name,
        names.LABEL_COMPONENT: names.COMPONENT_ENGINE,
        names.LABEL_REVISION: revision,
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": slot.spec.grace_seconds + ENGINE_MARGIN,
        "securityContext": dict(_POD_SECURITY),
        "affinity": _on_node(slot_pod.node),
        "tolerations": [dict(_CORDONED)],
        "containers": [_engine(observed, revision, part, slot.spec.grace_seconds)],
    }
    claims = _claims(part).items()
    if claims:
        spec["volumes"] = [
            {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            for name, (claim, _) in claims
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": engine_pod_name(slot.name, revision, number),
            "namespace": observed.namespace,
            "labels": _labels(observed.name, **labels),
            "ownerReferences": _owner("LingSlot", slot.name, slot.uid),
        },
        "spec": spec,
    }
