"""The events that a change of status is worth. Pure.

A condition that keeps its status and reason is worth none, but for the steps of a rollout.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.slotstatus import Condition
from ling_operator.rollout import COMPLETE, GIVEN_UP
from ling_operator.stage import but_fills
from ling_operator.views import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_operator.views import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event about the LingDeployment."""

    reason: str
    message: str
    warning: bool = False


_GAINED: Final = {
    names.READY: "Serving",
    names.UPDATE_IN_PROGRESS: "UpdateStarted",
    names.WEIGHTS_CACHED: "WeightsHeld",
}
_GONE: Final = {names.READY: "NotServing", names.UPDATE_IN_PROGRESS: "UpdateEnded", names.DEGRADED: "Recovered"}
_WARNS: Final = frozenset({names.READY})


def _of_condition(new: Condition, old: Condition | None) -> Event | None:
    if new.type == names.PROGRESSING:
        if old is not None and old.reason == new.reason:
            news = new.reason == "Updating" and but_fills(old.message) != but_fills(new.message)
            return Event(reason="RolloutStep", message=new.message) if news else None
        if new.reason in GIVEN_UP or new.reason == "InvalidSpec":
            return Event(reason=new.reason, message=new.message, warning=True)
        scaled = old is not None and old.reason == "Scaling"
        return Event(reason="RolloutCompleted", message=new.message) if new.reason == COMPLETE and not scaled else None
    if new.type == names.DEGRADED and new.true:
        changed = old is None or not old.true or old.reason != new.reason
        return Event(reason=new.reason, message=new.message, warning=True) if changed else None
    if old is None and not new.true:
        return None
    if old is not None and old.status == new.status:
        return None
    if new.reason == "ScaledToZero":
        return Event(reason=new.reason, message=new.message)
    reason = (_GAINED if new.true else _GONE).get(new.type)
    return Event(reason=reason, message=new.message, warning=new.type in _WARNS and not new.true) if reason else None


def events_of(before: Sequence[Condition], status: Mapping[str, Any]) -> list[Event]:
    """What changed between the conditions before and those of the new status."""
    old = {one.type: one for one in before}
    found = (_of_condition(one, old.get(one.type)) for one in map(Condition.from_dict, status["conditions"]))
    return [one for one in found if one is not None]


def build_event(observed: Observed, event: Event, now: float) -> dict[str, Any]:
    """The Event object. Its name follows from what it tells and the object's version, so a repeat is no second one."""
    seed = "/".join((observed.uid, observed.resource_version, event.reason, event.message))
    digest = hashlib.sha256(seed.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{observed.name}.{digest}", "namespace": observed.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": "LingDeployment",
            "name": observed.name,
            "namespace": observed.namespace,
            "uid": observed.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": "ling-operator"},
        "reportingComponent": "ling-operator",
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }
