"""What kubectl answered about one LingDeployment, as one frozen value with short words for long paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ling_api import names
from ling_api.slotstatus import Condition, EngineStatus, LingSlotStatus

type Object = Mapping[str, Any]

EXITS: Final = {  # of ling-engine, as a clause
    0: "it had drained",
    1: "an unexpected error: its log has it",
    2: "its input is wrong: an argument, the checkpoint or the configuration",
    3: "the agent refused it",
    4: "it could not reach the node agent",
    5: "attached weights did not match their checksums",
    6: "a device error",
    7: "filling the weights failed",
    8: "the plug-in of the runtime is missing",
    137: "it was killed, mostly for want of memory",
}


def seconds(text: str | None) -> float | None:
    """Unix time of an RFC 3339 text, with or without fractions."""
    return datetime.fromisoformat(text).timestamp() if text else None


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def span(length: float) -> str:
    """A duration for a glance: 0.4 s, 35 s, 12 min, 3.1 h, 4 d."""
    if length < 10:
        return f"{max(length, 0):.1f} s"
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if length < limit:
            return f"{length / divisor:.0f} {unit}"
    return f"{length / 86400:.0f} d"


def amount(count: float) -> str:
    """Bytes for a glance: 512.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def label(body: Object, name: str) -> str:
    return str((body["metadata"].get("labels") or {}).get(name, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a slot or an engine."""

    body: Object

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def component(self) -> str:
        return label(self.body, names.LABEL_COMPONENT)

    @property
    def node(self) -> str:
        return str(self.body["spec"].get("nodeName") or "")

    @property
    def leaving(self) -> bool:
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def status(self) -> Object:
        found: Object = self.body.get("status") or {}
        return found

    @property
    def unschedulable(self) -> str:
        """The scheduler's words, "" when it has placed the pod or not looked yet."""
        for one in self.status.get("conditions") or ():
            if one["type"] == "PodScheduled" and one["status"] == "False":
                return str(one.get("message") or one.get("reason") or "no node fits")
        return ""

    @property
    def waiting(self) -> tuple[str, str]:
        """Reason and message of a container that does not run; empty when all do."""
        for one in self.status.get("containerStatuses") or ():
            found = (one.get("state") or {}).get("waiting")
            if found and found.get("reason") not in ("ContainerCreating", "PodInitializing"):
                return str(found.get("reason") or "Waiting"), str(found.get("message") or "")
        return "", ""

    @property
    def last_exit(self) -> tuple[int, str] | None:
        """Exit code and last words of the container that ran before."""
        for one in self.status.get("containerStatuses") or ():
            ended = (one.get("lastState") or {}).get("terminated") or (one.get("state") or {}).get("terminated")
            if ended:
                words = str(ended.get("message") or "").strip().splitlines()
                return int(ended.get("exitCode", -1)), words[-1] if words else str(ended.get("reason") or "")
        return None

    @property
    def restarts(self) -> int:
        return sum(int(one.get("restartCount", 0)) for one in self.status.get("containerStatuses") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSeen:
    """A LingSlot with its pods."""

    body: Object
    status: LingSlotStatus
    slot_pod: Pod | None
    engine_pods: tuple[Pod, ...]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def serving(self) -> bool:
        return self.status.is_true(names.SERVING)

    def reported(self, pod: str) -> EngineStatus | None:
        """What the agent says of an engine pod."""
        return next((one for one in self.status.engines if one.pod == pod), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was asked about a LingDeployment. `now` is Unix time."""

    body: Object
    slots: tuple[SlotSeen, ...]
    revisions: tuple[Object, ...]  # oldest first
    events: tuple[Object, ...]
    now: float

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def spec(self) -> Object:
        found: Object = self.body["spec"]
        return found

    @property
    def status(self) -> Object:
        found: Object = self.body.get("status") or {}
        return found

    @property
    def conditions(self) -> Mapping[str, Condition]:
        return {one["type"]: Condition.from_dict(one) for one in self.status.get("conditions") or ()}

    def is_true(self, kind: str) -> bool:
        found = self.conditions.get(kind)
        return found is not None and found.true


def _slot(body: Object, pods: Sequence[Pod]) -> SlotSeen:
    own = [pod for pod in pods if label(pod.body, names.LABEL_SLOT) == body["metadata"]["name"]]
    engines = sorted((pod for pod in own if pod.component == names.COMPONENT_ENGINE), key=lambda pod: pod.name)
    return SlotSeen(
        body=body,
        status=LingSlotStatus.from_dict(body.get("status") or {}),
        slot_pod=next((pod for pod in own if pod.component == names.COMPONENT_SLOT), None),
        engine_pods=tuple(engines),
    )


def gather(body: Object, below: Sequence[Object], events: Sequence[Object], now: float) -> Seen:
    """From the LingDeployment, the objects with its label, and events of its namespace."""
    pods = [Pod(body=one) for one in below if one["kind"] == "Pod"]
    slots = [_slot(one, pods) for one in below if one["kind"] == "LingSlot"]
    revisions = [one for one in below if one["kind"] == "ControllerRevision"]
    ours = {body["metadata"]["name"], *(slot.name for slot in slots), *(pod.name for pod in pods)}
    return Seen(
        body=body,
        slots=tuple(sorted(slots, key=lambda slot: slot.name)),
        revisions=tuple(sorted(revisions, key=lambda one: int(one["revision"]))),
        events=tuple(one for one in events if (one.get("involvedObject") or {}).get("name") in ours),
        now=now,
    )
