"""How soon a changed status is written, and the times of its conditions."""

from typing import Any

import pytest

from ling_nodeagent import pace

SERVING = {"type": "Serving", "status": "True", "reason": "Accepting", "message": "chat-0-1a2b3c4d-0 accepts"}
STATUS: dict[str, Any] = {
    "listener": True,
    "message": "",
    "active": {"pod": "chat-0-1a2b3c4d-0", "uid": "u1", "term": 1},
    "engines": [
        {"pod": "chat-0-1a2b3c4d-0", "role": "active", "requests": 3, "inFlight": 1, "phases": {"warm": 900.0}}
    ],
    "weightSets": [{"set": "ab:0", "state": "filling", "progress": 0.25}],
    "conditions": [SERVING],
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**STATUS, **parts}


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        pytest.param(STATUS, None, id="nothing"),
        pytest.param(changed(active={"pod": "", "uid": "", "term": 2}), 0.0, id="active"),
        pytest.param(changed(listener=False), 0.0, id="listener"),
        pytest.param(changed(engines=[]), 0.0, id="an-engine-less"),
        pytest.param(changed(engines=[{**STATUS["engines"][0], "role": "draining"}]), 0.0, id="role"),
        pytest.param(changed(weightSets=[{"set": "ab:0", "state": "sealed"}]), 0.0, id="sealed"),
        pytest.param(changed(conditions=[{**SERVING, "status": "False"}]), 0.0, id="condition"),
        pytest.param(changed(conditions=[{**SERVING, "message": "other words"}]), 0.2, id="condition-message"),
        pytest.param(changed(weightSets=[{"set": "ab:0", "state": "filling", "progress": 0.5}]), 0.2, id="progress"),
        pytest.param(changed(message="waits for room"), 0.2, id="message"),
        pytest.param(changed(engines=[{**STATUS["engines"][0], "requests": 9, "inFlight": 0}]), 10.0, id="counters"),
    ],
)
def test_delay(wanted: dict[str, Any], seconds: float | None) -> None:
    assert pace.delay(STATUS, wanted) == seconds


def test_the_first_status_is_written_at_once() -> None:
    assert pace.delay(None, STATUS) == 0.0


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = pace.stamped(STATUS, {}, "T1")
    assert first["conditions"][0]["lastTransitionTime"] == "T1"
    again = pace.stamped(changed(conditions=[{**SERVING, "reason": "Held"}]), pace.times(first), "T2")
    assert again["conditions"][0]["lastTransitionTime"] == "T1"
    turned = pace.stamped(changed(conditions=[{**SERVING, "status": "False"}]), pace.times(again), "T3")
    assert turned["conditions"][0]["lastTransitionTime"] == "T3"
    assert STATUS["conditions"] == [SERVING]
