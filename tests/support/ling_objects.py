"""LingDeployments, slots and pods as the API server tells them, for what only reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ling_kubectl.seen import Seen, gather

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z
REVISION, FORMER = "aaaa1111", "bbbb2222"

type Object = dict[str, Any]


def at(seconds: float) -> str:
    """A time, in seconds before NOW."""
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str, reason: str = "R", message: str = "", *, since: float = 30) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(since)}


def deployment(*conditions: Object, spec: Object | None = None, **status: Any) -> Object:
    return {
        "apiVersion": "ling.dev/v1alpha1",
        "kind": "LingDeployment",
        "metadata": {
            "name": "tiny", "namespace": "team", "generation": 3, "resourceVersion": "77",
            "creationTimestamp": at(3600),
        },
        "spec": {"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}, **(spec or {})},
        "status": {
            "observedGeneration": 3, "serving": "1/1", "message": "1 of 1 slots serve", "currentRevision": REVISION,
            "updateRevision": REVISION, "conditions": list(conditions), **status,
        },
    }  # fmt: skip


def slot(*conditions: Object, name: str = "tiny-0", **status: Any) -> Object:
    told = {"node": "n1", "active": {"pod": "", "term": 1}, "conditions": list(conditions), **status}
    meta = {"name": name, "namespace": "team", "creationTimestamp": at(100)}
    return {"kind": "LingSlot", "metadata": meta, "spec": {"deployment": "tiny"}, "status": told}


def pod(
    component: str, name: str, *, of: str = "tiny-0", node: str = "n1", phase: str = "Running", **status: Any
) -> Object:
    labels = {"ling.dev/component": component, "ling.dev/slot": of, "ling.dev/deployment": "tiny"}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels, "creationTimestamp": at(90)}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": {"phase": phase, **status}}


def unschedulable(component: str, name: str, message: str) -> Object:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(component, name, node="", phase="Pending", conditions=[said])


def waiting(name: str, reason: str, message: str = "", code: int | None = None, words: str = "") -> Object:
    container: Object = {"state": {"waiting": {"reason": reason, "message": message}}, "restartCount": 4}
    if code is not None:
        container["lastState"] = {"terminated": {"exitCode": code, "message": words}}
    return pod("engine", name, containerStatuses=[container])


def revision(name: str, number: int, made: float, **data: Any) -> Object:
    meta = {"name": f"tiny-{name}", "labels": {"ling.dev/revision": name}, "creationTimestamp": at(made)}
    return {"kind": "ControllerRevision", "metadata": meta, "revision": number, "data": data}


def event(
    reason: str, message: str, *, about: str = "tiny", warning: bool = False, ago: float = 10, count: int = 1
) -> Object:
    return {
        "kind": "Event", "involvedObject": {"name": about}, "reason": reason, "message": message, "count": count,
        "type": "Warning" if warning else "Normal", "lastTimestamp": at(ago),
    }  # fmt: skip


def seen(body: Object, *below: Object, events: tuple[Object, ...] = ()) -> Seen:
    """All of it as `kubectl ling` sees it."""
    return gather(body, below, events, NOW)
