"""How soon a changed status is worth a write, and when its conditions last changed. No I/O, no clock.

A transition is written at once, the progress of a fill five times a second, mere counters every ten seconds: a
cluster of busy slots must not become a load test of its API server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

type Status = Mapping[str, Any]

PROGRESS, COUNTERS = 0.2, 10.0  # seconds after the last write
COUNTER_KEYS = frozenset({"requests", "inFlight", "ttftMs", "tpotMs", "acceptLength", "samples", "windowSeconds"})
PROGRESS_KEYS = COUNTER_KEYS | {"progress", "phases", "message", "holders", "bytes", "lastTransitionTime"}


def delay(written: Status | None, wanted: Status) -> float | None:
    """Seconds from the last write to the next; None when they are equal."""
    if written == wanted:
        return None
    if written is None or _without(written, PROGRESS_KEYS) != _without(wanted, PROGRESS_KEYS):
        return 0.0
    return PROGRESS if _without(written, COUNTER_KEYS) != _without(wanted, COUNTER_KEYS) else COUNTERS


def _without(value: Any, keys: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, keys) for key, each in value.items() if key not in keys}
    return [_without(each, keys) for each in value] if isinstance(value, list) else value


def stamped(status: Status, known: Mapping[str, tuple[str, str]], now: str) -> dict[str, Any]:
    """The status with the time of each condition's last transition: that of `known` (type -> status, time) or now."""
    conditions = []
    for condition in status.get("conditions") or ():
        value, since = known.get(condition["type"], ("", ""))
        time = since if value == condition["status"] and since else now
        conditions.append({**condition, "lastTransitionTime": time})
    return {**status, "conditions": conditions}


def times(status: Status) -> dict[str, tuple[str, str]]:
    """What `stamped` is to know of a status: condition type -> status, last transition."""
    return {
        condition["type"]: (condition["status"], condition.get("lastTransitionTime", ""))
        for condition in status.get("conditions") or ()
    }
