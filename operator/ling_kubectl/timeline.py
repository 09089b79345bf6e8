"""What happened since the last change began, in the order of time: objects made, conditions turned, events. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ling_api import names

from .seen import clock, seconds, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_api.slotstatus import Condition

    from .seen import Object, Seen

LINES: Final = 24  # of the newest that are shown
WIDTH: Final = 130
NOISE: Final = frozenset({"Unhealthy", "MissingClusterDNS", "BackOff"})  # of pods: other lines tell the same better


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened; `at` is Unix time."""

    at: float
    text: str


def began(seen: Seen) -> float:
    """When the last change began: a rollout, else the newest revision, else the object."""
    progress = seconds((seen.status.get("progress") or {}).get("started"))
    made = [seconds(one["metadata"].get("creationTimestamp")) for one in (*seen.revisions, seen.body)]
    return max(one for one in (progress, made[-2] if len(made) > 1 else None, made[-1], 0.0) if one is not None)


def _made(body: Object, what: str) -> Iterator[Moment]:
    at = seconds(body["metadata"].get("creationTimestamp"))
    if at is not None:
        yield Moment(at=at, text=f"{what} {body['metadata']['name']} is made")
    leaves = seconds(body["metadata"].get("deletionTimestamp"))
    if leaves is not None:
        grace = body["metadata"].get("deletionGracePeriodSeconds") or 0  # the API server adds it to the time
        yield Moment(at=leaves - grace, text=f"{what} {body['metadata']['name']} is told to leave")


def _turned(conditions: tuple[Condition, ...], whose: str) -> Iterator[Moment]:
    for one in conditions:
        at = seconds(one.last_transition_time)
        if at is not None and (one.true or one.type == names.READY):
            said = f": {one.message}" if one.message else ""
            yield Moment(at=at, text=f"{whose}{one.type}={one.status} {one.reason}{said}")


def _events(seen: Seen) -> Iterator[Moment]:
    for one in seen.events:
        about = one["involvedObject"]["name"]
        if about != seen.name and (one.get("type") != "Warning" or one.get("reason") in NOISE):
            continue
        at = seconds(one.get("lastTimestamp") or one.get("eventTime") or one.get("firstTimestamp"))
        if at is not None:
            warning = "! " if one.get("type") == "Warning" else ""
            times = f" (x{one['count']})" if (one.get("count") or 1) > 1 else ""
            who = "" if about == seen.name else f"{about}: "
            yield Moment(at=at, text=f"{warning}{who}{one.get('reason')}: {one.get('message')}{times}")


def moments(seen: Seen) -> list[Moment]:
    """The last change, oldest first, at most LINES of it."""
    found: list[Moment] = []  # in this order where times are equal: they are whole seconds
    for revision in seen.revisions:
        found += _made(revision, "revision")
    for slot in seen.slots:
        found += _made(slot.body, "slot")
        for pod in (slot.slot_pod, *slot.engine_pods):
            if pod is not None:
                found += _made(pod.body, f"{pod.component} pod")
    for slot in seen.slots:
        found += _turned(slot.status.conditions, f"{slot.name}: ")
    told = {one.get("message") for one in seen.events}
    found += _turned(tuple(one for one in seen.conditions.values() if one.message not in told), "")
    found += _events(seen)
    since = began(seen) - 1
    return sorted((one for one in found if one.at >= since), key=lambda one: one.at)[-LINES:]


def render(seen: Seen) -> list[str]:
    """A line a moment: the time, how long after the beginning, what."""
    found = moments(seen)
    if not found:
        return []
    start = found[0].at
    return [f"{clock(one.at)}  {'+' + span(one.at - start):>8}  {one.text}"[:WIDTH] for one in found]
