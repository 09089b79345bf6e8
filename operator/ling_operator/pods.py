"""The pods that the operator makes: slot pods, engine pods, fill pods. Pure: the same input gives the same manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.engine import SGLANG
from ling_operator import devices
from ling_operator.builders import labels_of, owner_of
from ling_operator.commandline import RUN, engine_args
from ling_operator.views import FILL

if TYPE_CHECKING:
    from collections.abc import Collection

    from ling_api.v1alpha1 import EnginePart, LingSlotSpec
    from ling_operator.settings import Images
    from ling_operator.views import Observed, SlotView

KEEPER_MEMORY: Final = 64 << 20  # what the keeper itself needs beside the regions that it holds
ENGINE_MARGIN: Final = 30  # seconds that an engine pod may live longer than a lame duck with clients, and its drain
SLOT_MARGIN: Final = 45  # its slot pod outlives it: the connections are in the slot pod's network
USER: Final = 65532

_CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_MAY_GO: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}  # the PodDisruptionBudgets say when
_SHM: Final = "/dev/shm"  # noqa: S108 - where every libc looks for it
_TMP: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod
_SHARED: Final = {"name": "shm", "emptyDir": {"medium": "Memory"}}  # NCCL's; a container has 64 MiB by itself
_COMPILED: Final = {"name": "jit", "emptyDir": {"sizeLimit": "4Gi"}}  # kernels that the runtime compiles
_SCRATCH: Final = {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}  # HOME of our images; all else is read-only
# a node that is cut off may come back, its engines serving all along; when another slot serves, the operator acts
_STAYS: Final = tuple(
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute"}
    for why in ("not-ready", "unreachable")
)
_CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def _probe(path: str, **more: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": names.PROBE_PORT}, **more}


def _on_node(node: str) -> dict[str, Any]:
    """Affinity to exactly this node, by its name."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _off(nodes: Collection[str]) -> dict[str, Any]:
    """Affinity to any node but these: who tolerates every taint would go where a slot is being replaced."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}} if fields else {}


def _apart(deployment: str) -> dict[str, Any]:
    """Slots rather on different nodes, so that one node takes one slot along."""
    labels = {names.LABEL_DEPLOYMENT: deployment, names.LABEL_COMPONENT: names.COMPONENT_SLOT}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def leave_seconds(spec: LingSlotSpec) -> int:
    """From SIGTERM until an engine drains at the latest: clients may keep a lame duck for `graceSeconds`."""
    return spec.lame_duck_seconds + spec.grace_seconds


def engine_grace(spec: LingSlotSpec) -> int:
    """Seconds that an engine pod gets to end: it leaves, then it drains."""
    return leave_seconds(spec) + spec.grace_seconds + ENGINE_MARGIN


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
        # No liveness probe: it would see the pod network, not the keeper, and a restart runs preStop.
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
        "terminationGracePeriodSeconds": engine_grace(slot.spec) - ENGINE_MARGIN + SLOT_MARGIN,
        "securityContext": dict(_POD_SECURITY),
        "affinity": _on_node(node) if node else {**_off(observed.ailing), **_apart(observed.name)},
        "containers": [_keeper(memory, images.nodeagent)],
        **devices.pod_claims(slot.name, slot.spec.gpu),
        **slot.spec.place.to_dict(),
    }
    spec["tolerations"] = [*([dict(_CORDONED)] if node else []), *_tolerations(slot)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": slot.name,
            "namespace": observed.namespace,
            "labels": labels_of(observed.name, **labels),
            "annotations": dict(_MAY_GO),
            "ownerReferences": owner_of("LingSlot", slot.name, slot.uid),
        },
        "spec": spec,
    }


def _tolerations(slot: SlotView) -> list[dict[str, str]]:
    own = [*devices.pod_tolerations(slot.spec.gpu), *(dict(one) for one in slot.spec.place.tolerations)]
    return [*(dict(one) for one in _STAYS), *own]


def _claims(part: EnginePart) -> dict[str, tuple[str, str]]:
    """Volumes of an engine pod: name -> claim, where it is mounted. One claim is one volume."""
    found, draft = {}, part.decoding.draft
    if part.model.claim:
        found["checkpoint"] = (part.model.claim, names.PVC_DIR)
    if draft is not None and draft.claim not in ("", part.model.claim):
        found["draft"] = (draft.claim, names.DRAFT_DIR)
    return found


def _engine(observed: Observed, slot: SlotView, revision: str, part: EnginePart, command: str) -> dict[str, Any]:
    resources = part.engine.resources.to_dict()
    limits = {**resources.get("limits", {}), names.RESOURCE: "1"}

    container: dict[str, Any] = {
        "name": "engine",
        "image": part.engine.image,
        "imagePullPolicy": "IfNotPresent",
        "args": engine_args(observed.name, revision, part, slot.spec.grace_seconds, command),
        "ports": [{"name": "probes", "containerPort": names.PROBE_PORT, "protocol": "TCP"}],
        "resources": devices.container_resources(slot.spec.gpu, {**resources, "limits": limits}),
        "livenessProbe": _probe(
            "/livez", initialDelaySeconds=30, periodSeconds=10, timeoutSeconds=5, failureThreshold=6
        ),
        "readinessProbe": _probe("/readyz", periodSeconds=1, timeoutSeconds=2, failureThreshold=2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(_CONTAINER_SECURITY),
    }
    env = dict(part.engine.env)
    if command == RUN:
        env.setdefault(names.ENV_LEAVE_SECONDS, str(leave_seconds(slot.spec)))
    if env:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    mounts = [{"name": name, "mountPath": at, "readOnly": True} for name, (_, at) in _claims(part).items()]
    if part.engine.runtime == SGLANG:  # a root to write to: docs/security.md says why
        mounts += [{"name": "shm", "mountPath": _SHM}, {"name": "jit", "mountPath": names.CACHE_DIR}]
    else:
        container["securityContext"]["readOnlyRootFilesystem"] = True
        mounts += [{"name": "tmp", "mountPath": _TMP}]
    return {**container, "volumeMounts": mounts}


def engine_pod_name(slot: str, revision: str, number: int) -> str:
    return f"{slot}-{revision}-{number}"


def fill_pod_name(slot: str, revision: str) -> str:
    return f"{slot}-{revision}-{FILL}"


def build_engine_pod(
    observed: Observed, slot: SlotView, node: str, revision: str, part: EnginePart, number: int
) -> dict[str, Any]:
    """An engine pod of one revision. `node` is its slot pod's; without one it goes where there is a GPU."""
    name = engine_pod_name(slot.name, revision, number)
    return engine_pod(observed, slot, name, revision, part, engine_spec(observed, slot, node, revision, part, RUN))


def build_fill_pod(observed: Observed, slot: SlotView, node: str, revision: str, part: EnginePart) -> dict[str, Any]:
    """The pod that reads a spare slot's weights ahead and ends. It stays, ended, as the note that this was done."""
    spec = engine_spec(observed, slot, node, revision, part, FILL)
    container = spec["containers"][0]
    del container["livenessProbe"], container["readinessProbe"]
    name = fill_pod_name(slot.name, revision)
    return engine_pod(observed, slot, name, revision, part, {**spec, "restartPolicy": "OnFailure"})


def engine_spec(
    observed: Observed, slot: SlotView, node: str, revision: str, part: EnginePart, command: str
) -> dict[str, Any]:
    """The `spec` of a pod of the engine's image that runs this command of it on the slot's node."""
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": engine_grace(slot.spec),
        "securityContext": dict(_POD_SECURITY),
        "containers": [_engine(observed, slot, revision, part, command)],
        **devices.pod_claims(slot.name, slot.spec.gpu),
        **slot.spec.place.to_dict(),
        "tolerations": [*([dict(_CORDONED)] if node else []), *_tolerations(slot)],
    }
    affinity = _on_node(node) if node else _off(observed.ailing)
    if affinity:
        spec["affinity"] = affinity
    if part.engine.pod_template.runtime_class:
        spec["runtimeClassName"] = part.engine.pod_template.runtime_class
    return {**spec, "volumes": _volumes(part)}


def _volumes(part: EnginePart) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for name, (claim, _) in _claims(part).items()
    ]
    return claims + ([dict(_SHARED), dict(_COMPILED)] if part.engine.runtime == SGLANG else [dict(_SCRATCH)])


def engine_pod(
    observed: Observed, slot: SlotView, name: str, revision: str, part: EnginePart, spec: dict[str, Any]
) -> dict[str, Any]:
    """The pod of that name around a `spec`, with the labels and annotations of an engine pod."""
    template = part.engine.pod_template
    labels = {
        names.LABEL_SLOT: slot.name,
        names.LABEL_COMPONENT: names.COMPONENT_ENGINE,
        names.LABEL_REVISION: revision,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": observed.namespace,
            "labels": {**dict(template.labels), **labels_of(observed.name, **labels)},
            "annotations": {**_MAY_GO, **dict(template.annotations)},
            "ownerReferences": owner_of("LingSlot", slot.name, slot.uid),
        },
        "spec": spec,
    }
