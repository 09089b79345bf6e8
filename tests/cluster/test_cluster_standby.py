"""A warm standby on real nodes: it takes over at a death and at a hang, also while the API server is away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import continuity
from benchmarks.continuity_events import Event, Scene, kill_server, upgrade
from tests.support.cluster import STANDIN, Trial, deployment
from tests.support.stopped import api_server_stopped

if TYPE_CHECKING:
    from hack.cluster.access import Cluster

NAME = "ready"
RATE = 25.0
AWAY_S = 12.0  # much longer, and the nodes count as dead: no kubelet can renew its lease

# the pid, on the node, of the server below a container's first process
FIND_SERVER = """
pid=$(ctr -n k8s.io task ls | awk -v id="$1" '$1 == id { print $2 }')
zygote=$(tr ' ' '\\n' <"/proc/$pid/task/$pid/children" | head -n 1)
tr ' ' '\\n' <"/proc/$zygote/task/$zygote/children" | head -n 1
"""
KILL = 'echo "$EPOCHREALTIME"; kill -KILL "$1"'
STOP = 'echo "$EPOCHREALTIME"; kill -STOP "$1"'


@pytest.fixture
def scene(trial: Trial, cluster: Cluster, model: str) -> Scene:
    """One engine serves, one is its warm standby, a client asks from the other node."""
    trial.apply(deployment(NAME, model, image=STANDIN, standby={"replicas": 1, "mode": "Warm"}))
    trial.wait_condition(NAME, "Ready")
    found = Scene(cluster, trial.name, NAME)
    trial.wait_for("a warm standby", lambda: found.standby_ready("Warm"))
    trial.client(away_from=found.node())
    found.url = trial.address(NAME)
    return found


def in_node(scene: Scene) -> tuple[int, str]:
    """The node's number and the pid there of the active engine's server."""
    pod = scene.cluster.get("pod", scene.active()[0], namespace=scene.namespace)
    full = pod["status"]["containerStatuses"][0]["containerID"]
    node = int(pod["spec"]["nodeName"].removeprefix("n"))
    pid = scene.cluster.node("exec", node, "bash", "-c", FIND_SERVER, "find", full.split("//")[1]).strip()
    assert pid
    return node, pid


def test_the_standby_takes_over_and_is_restored(scene: Scene) -> None:
    served = scene.active()[0]
    seen = continuity.observe(scene, "server", kill_server, "new", RATE)
    assert seen.ok, seen
    assert seen.gaps[0] < 10_000, seen  # what it is on a quiet machine, benchmarks tell
    assert scene.active()[0] != served
    scene.cluster.wait_for("a standby again", lambda: scene.standby_ready("Warm"))


def test_failover_needs_no_api_server(scene: Scene, cluster: Cluster) -> None:
    if not cluster.local:
        pytest.skip("stopping the API server needs the local cluster")
    node, pid = in_node(scene)
    before = scene.active()

    def perform(_: Scene) -> Event:
        with api_server_stopped(cluster):
            at = float(cluster.node("exec", node, "bash", "-c", KILL, "kill", pid))
            time.sleep(AWAY_S)
        return at, lambda: scene.active()[1] > before[1]

    seen = continuity.observe(scene, "server", perform, "new", RATE)
    assert seen.ok, seen
    assert seen.gaps[0] < AWAY_S * 1000, "a successor served while nobody could be asked"
    assert scene.active()[0] != before[0]


def test_a_stopped_server_is_replaced_by_the_standby(scene: Scene, cluster: Cluster) -> None:
    if not cluster.local:
        pytest.skip("stopping a process needs the local cluster")
    node, pid = in_node(scene)
    before = scene.active()

    def perform(_: Scene) -> Event:
        at = float(cluster.node("exec", node, "bash", "-c", STOP, "stop", pid))
        # status tells of a fault for a minute, also when all is well again
        return at, lambda: scene.active()[1] > before[1] and reason(scene, "Degraded") == "EngineHung"

    seen = continuity.observe(scene, "server", perform, "new", RATE)
    assert seen.failures.get("refused", 0) == 0, seen
    assert set(seen.failures) <= {"broken"}, seen
    assert seen.gaps[0] < 60_000


def test_an_edit_is_a_handover_with_the_standby_beside_it(scene: Scene) -> None:
    seen = continuity.observe(scene, "edit", upgrade, "keep", RATE)
    assert seen.failed == 0, seen
    scene.cluster.wait_for("a standby again", lambda: scene.standby_ready("Warm"))


def reason(scene: Scene, kind: str) -> str:
    conditions: list[dict[str, Any]] = scene.slot()["status"].get("conditions", [])
    return next((str(each["reason"]) for each in conditions if each["type"] == kind), "")
