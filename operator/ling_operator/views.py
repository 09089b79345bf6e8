"""What the API server says about one LingDeployment and everything below it, as frozen values.

Parsing only. Objects that belong to an owner of another uid (a deleted LingDeployment of the same name) are seen, since
they still take their names, but are marked `owned=False` and nobody touches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from ling_api import names
from ling_api.errors import BadInput
from ling_api.slotstatus import Condition, LingSlotStatus
from ling_api.v1alpha1 import EnginePart, LingDeploymentSpec, LingSlotSpec
from ling_operator.refusals import Refusal, from_status
from ling_operator.surroundings import ClaimView, NodeView, owner_uid, seconds

type Object = Mapping[str, Any]

FILL: Final = "fill"  # the command of the engine that reads weights ahead, and the end of its pod's name

BROKEN_WAITS: Final = (
    *("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)


def rfc3339(now: float) -> str:
    """Seconds since the epoch as the API server writes times."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionView:
    """A ControllerRevision. `part` is the engine part with its image resolved."""

    name: str
    uid: str
    revision: str
    number: int
    part: EnginePart
    owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """A LingSlot."""

    name: str
    uid: str
    number: int
    deleting: bool
    owned: bool
    spec: LingSlotSpec
    status: LingSlotStatus
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A slot pod or an engine pod. `trouble` says in words why it does not run, "" when it does.

    `avoids`: nodes that it must not be on. `waits_since`: since when no node takes it, 0 while one does or nobody has
    tried. `ready_changed`: since when it is Ready, or is not.
    """

    name: str
    uid: str
    slot: str
    slot_uid: str
    component: str
    revision: str
    number: int
    node: str
    deleting: bool
    phase: str
    ready: bool
    serving: bool
    unschedulable: bool
    broken: bool
    trouble: str
    created: float
    avoids: frozenset[str] = frozenset()
    waits_since: float = 0.0
    ready_changed: float = 0.0

    @property
    def fill(self) -> bool:
        """It reads a spare slot's weights and ends."""
        return bool(self.revision) and self.name == f"{self.slot}-{self.revision}-{FILL}"

    @property
    def terminal(self) -> bool:
        """It has ended for good: its containers will not run again."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def live(self) -> bool:
        """It runs or will run, and nobody has told it to end."""
        return not self.deleting and not self.terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the progress deadline counts from, times in seconds since the epoch."""

    revision: str
    updated: int
    since: float
    started: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """What the status said before this look: it remembers what no other object tells."""

    conditions: tuple[Condition, ...] = ()
    current_revision: str = ""
    update_revision: str = ""
    progress: Progress | None = None
    leaving: Mapping[str, float] = field(default_factory=dict)  # slot -> since when its node leaves
    refused: tuple[Refusal, ...] = ()  # what the API server would not do
    raw: Object | None = None

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions if one.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One LingDeployment and all below it. `spec` is None, and `complaint` says why, if it is nonsense."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    spec: LingDeploymentSpec | None
    complaint: str
    previous: Previous
    revisions: tuple[RevisionView, ...] = ()
    slots: tuple[SlotView, ...] = ()
    pods: tuple[PodView, ...] = ()
    service: Object | None = None
    agents: frozenset[str] = frozenset()  # nodes with an agent that is Ready
    claims: tuple[ClaimView, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)  # those on which pods of ours are or were
    devices: Mapping[str, int] | None = None  # by node, at most, for the wanted `gpu`; None: nobody asked, or unknown
    now: float = 0.0  # when it was looked at, in seconds since the epoch
    watched_since: float = 0.0  # since when somebody has been looking without a break, the same
    budgets: Mapping[str, Object | None] = field(default_factory=dict)  # the PodDisruptionBudgets by name

    @property
    def ailing(self) -> frozenset[str]:
        """The nodes, of those on which pods of ours are or were, that leave or are dead."""
        return frozenset(name for name, node in self.nodes.items() if node.leaving or not node.alive)

    @property
    def service_taken(self) -> bool:
        """The Service's name belongs to an object that is not ours."""
        return self.service is not None and owner_uid(self.service.get("metadata") or {}) != self.uid


def revision_view(body: Object, uid: str) -> RevisionView | None:
    """None when its data is none of ours."""
    meta = body["metadata"]
    try:
        part = EnginePart.from_dict(body.get("data") or {})
    except BadInput:
        return None
    image = part.engine.image or (meta.get("annotations") or {}).get(names.ANNOTATION_IMAGE, "")
    return RevisionView(
        name=meta["name"],
        uid=meta["uid"],
        revision=(meta.get("labels") or {}).get(names.LABEL_REVISION, ""),
        number=int(body.get("revision") or 0),
        part=replace(part, engine=replace(part.engine, image=image)),
        owned=owner_uid(meta) == uid,
    )


def _suffix(name: str, prefix: str) -> int:
    """The number at the end of PREFIX-NUMBER, -1 when it has none."""
    tail = name.removeprefix(f"{prefix}-")
    return int(tail) if tail.isdigit() and tail != name else -1


def slot_view(body: Object, deployment: str, uid: str) -> SlotView:
    meta = body["metadata"]
    return SlotView(
        name=meta["name"],
        uid=meta["uid"],
        number=_suffix(meta["name"], deployment),
        deleting=bool(meta.get("deletionTimestamp")),
        owned=owner_uid(meta) == uid,
        spec=LingSlotSpec.from_dict(body.get("spec") or {}),
        status=LingSlotStatus.from_dict(body.get("status") or {}),
        created=seconds(meta.get("creationTimestamp")),
    )


def _condition(status: Object, kind: str) -> Object:
    found = [one for one in status.get("conditions") or () if one.get("type") == kind]
    return found[0] if found else {}


def _waiting(status: Object) -> Object:
    """Why a container waits: its `state.waiting`, {} when none does."""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return dict(waiting)
    return {}


def _exit(status: Object) -> str:
    """How a container ended last, for people."""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get("terminated")
        if ended:
            text = (ended.get("message") or "").strip().splitlines()
            return f"exit {ended.get('exitCode')}" + (f": {text[-1]}" if text else "")
    return ""


def _trouble(status: Object) -> str:
    """One line on why a pod does not run, "" when it does."""
    scheduled, waiting = _condition(status, "PodScheduled"), _waiting(status)
    if status.get("phase") == "Failed":
        said = ": ".join(one for one in (status.get("reason"), status.get("message")) if one)
        return said or _exit(status) or "the pod failed"
    if scheduled.get("status") == "False":
        return f"no node takes it: {scheduled.get('message') or scheduled.get('reason')}"
    if waiting.get("reason") in BROKEN_WAITS:
        return ", ".join(one for one in (waiting["reason"], waiting.get("message"), _exit(status)) if one)
    return ""


def _avoided(spec: Object) -> Iterator[str]:
    """The nodes that its affinity excludes by name."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field_ in term.get("matchFields") or ():
            if field_.get("operator") == "NotIn":
                yield from field_.get("values") or ()


def pod_view(body: Object) -> PodView:
    meta, status = body["metadata"], body.get("status") or {}
    labels = meta.get("labels") or {}
    slot, revision = labels.get(names.LABEL_SLOT, ""), labels.get(names.LABEL_REVISION, "")
    scheduled, ready = _condition(status, "PodScheduled"), _condition(status, "Ready")
    unschedulable = scheduled.get("reason") == "Unschedulable"
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        slot=slot,
        slot_uid=owner_uid(meta),
        component=labels.get(names.LABEL_COMPONENT, ""),
        revision=revision,
        number=_suffix(meta["name"], f"{slot}-{revision}"),
        node=(body.get("spec") or {}).get("nodeName") or "",
        deleting=bool(meta.get("deletionTimestamp")),
        phase=status.get("phase") or "Pending",
        ready=ready.get("status") == "True",
        serving=labels.get(names.LABEL_SERVING) == "true",
        unschedulable=unschedulable,
        broken=_waiting(status).get("reason") in BROKEN_WAITS,
        trouble=_trouble(status),
        created=seconds(meta.get("creationTimestamp")),
        avoids=frozenset(_avoided(body.get("spec") or {})),
        waits_since=seconds(scheduled.get("lastTransitionTime")) if unschedulable else 0.0,
        ready_changed=seconds(ready.get("lastTransitionTime")),
    )


def previous_view(status: Object) -> Previous:
    progress = status.get("progress") or {}
    return Previous(
        conditions=tuple(Condition.from_dict(one) for one in status.get("conditions") or ()),
        current_revision=status.get("currentRevision") or "",
        update_revision=status.get("updateRevision") or "",
        progress=Progress(
            revision=progress.get("revision") or "",
            updated=progress.get("updated") or 0,
            since=seconds(progress.get("since")),
            started=seconds(progress.get("started")),
        )
        if progress
        else None,
        leaving={
            one["name"]: seconds(one["leavingSince"]) for one in status.get("slots") or () if one.get("leavingSince")
        },
        refused=from_status(status.get("refused") or ()),
        raw=status,
    )


def deployment_spec(body: Object) -> tuple[LingDeploymentSpec | None, str]:
    """The spec, or None and what is wrong with it."""
    try:
        return LingDeploymentSpec.from_dict(body.get("spec") or {}), ""
    except BadInput as error:
        return None, f"spec.{error}"
