"""Rule 6 on real nodes with the reference engine: the operator's container dies after a write, and the next goes on."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hack.cluster.access import SYSTEM, Cluster
from tests.support.cluster import Trial, deployment

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "served"
SWITCH = "LING_TEST_EXIT_AFTER_WRITES"
EXIT_AFTER_WRITE = 86
# an apply takes about so many writes, events and statuses included; every k in turn: tests/cluster/test_operator.py
FIRST, MIDDLE, LAST = 1, 8, 16


def operators(cluster: Cluster, value: str) -> list[dict[str, Any]]:
    """The operator's pods whose test switch has that value ("" = none), on their way out or not."""
    pods = cluster.items("pod", SYSTEM, "ling.dev/component=operator")
    return [pod for pod in pods if _switch_of(pod) == value]


def _switch_of(pod: dict[str, Any]) -> str:
    environment = pod["spec"]["containers"][0]["env"]
    return next((str(one["value"]) for one in environment if one["name"] == SWITCH), "")


def switch(cluster: Cluster, value: str) -> None:
    """Sets the test switch of the operator's Deployment ("" takes it off); the former operator is gone then."""
    name = cluster.items("deployment", SYSTEM, "app.kubernetes.io/name=ling")[0]["metadata"]["name"]
    cluster.kubectl("set", "env", f"deployment/{name}", "-n", SYSTEM, f"{SWITCH}={value}" if value else f"{SWITCH}-")
    cluster.wait_for("the next operator", lambda: operators(cluster, value))  # made when the former has ended


@contextlib.contextmanager
def mortal(cluster: Cluster, k: int) -> Iterator[None]:
    switch(cluster, str(k))
    try:
        yield
    finally:
        switch(cluster, "")


def died(cluster: Cluster, k: int) -> bool:
    """Whether the operator's container has ended by the switch, and not otherwise."""
    for pod in operators(cluster, str(k)):
        for status in pod["status"].get("containerStatuses", ()):
            for state in (status["state"], status["lastState"]):
                if "terminated" in state:
                    assert state["terminated"]["exitCode"] == EXIT_AFTER_WRITE
                    return True
    return False


@pytest.mark.parametrize("k", [FIRST, MIDDLE, LAST])
def test_it_dies_after_a_write_and_the_next_makes_no_extra_pod(
    cluster: Cluster, trial: Trial, model: str, k: int
) -> None:
    with mortal(cluster, k):
        trial.apply(deployment(NAME, model, memory="512Mi"))
        if k == LAST:  # perhaps there were fewer writes than that; then it lives
            trial.wait_for("dead, or all done", lambda: died(cluster, k) or ready(trial))
        else:
            trial.wait_for("the operator is dead", lambda: died(cluster, k))
    trial.wait_condition(NAME, "Ready")
    trial.wait_condition(NAME, "UpdateInProgress", "False")
    revision = trial.get("ld", NAME)["status"]["updateRevision"]
    wanted = {f"{NAME}-0", f"{NAME}-0-{revision}-0"}
    assert {pod["metadata"]["name"] for pod in trial.slot_pods(NAME) + trial.engine_pods(NAME)} == wanted
    told = {one["involvedObject"]["name"] for one in trial.items("event") if one["involvedObject"]["kind"] == "Pod"}
    assert told == wanted, "a pod that was made beside these and is gone was told of by kubelet and scheduler"
    assert [slot["metadata"]["name"] for slot in trial.items("lslot")] == [f"{NAME}-0"]


def ready(trial: Trial) -> bool:
    found = trial.cluster.condition("ld", NAME, trial.name, "Ready")
    return bool(found and found["status"] == "True")
