"""`kubectl drain` as people type it, node death, uncordon on real nodes: clients notice nothing where they must not."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import continuity
from benchmarks.continuity_events import Event, Scene
from hack.cluster.access import SYSTEM
from tests.support.cluster import STANDIN, Trial, deployment
from tests.support.stopped import api_server_stopped, stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.access import Cluster

NAME = "moved"
RATE = 25.0
API_STOPPED_S = 30.0
LATE_S = 10.0  # lameDuckSeconds are over, and more
IMPATIENT = {"replacementTimeoutSeconds": 10, "lameDuckSeconds": 2, "graceSeconds": 5}
PROMISED_S = float(sum(IMPATIENT.values()))
SLACK_S = 180.0  # kubectl asks again every 5 s; what waits for a time that is not its own, waits longer than this
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")


@pytest.fixture
def serve(trial: Trial, cluster: Cluster, model: str) -> Iterator[Callable[..., Scene]]:
    """Applies a LingDeployment with a client on another node; every node takes pods again afterwards."""

    def apply(*, client: bool = True, **spec: Any) -> Scene:
        drain = {"lameDuckSeconds": 2, **spec.pop("drain", {})}
        trial.apply(deployment(NAME, model, image=STANDIN, drain=drain, **spec))
        trial.wait_condition(NAME, "Ready")
        scene = Scene(cluster, trial.name, NAME)
        if client:
            trial.client(away_from=scene.slot()["status"]["node"])
            scene.url = trial.address(NAME)
        trial.wait_alone()
        return scene

    yield apply
    for node in cluster.get("nodes")["items"]:
        cluster.kubectl("uncordon", node["metadata"]["name"])


def nodes(trial: Trial) -> list[str]:
    """Where the slots are that serve."""
    return [one["node"] for one in trial.get("ld", NAME)["status"].get("slots", ()) if one.get("serving")]


def drain(scene: Scene) -> Event:
    node = scene.slot()["status"]["node"]
    at = time.time()
    scene.cluster.kubectl("drain", node, *DRAIN, timeout=330)
    return at, scene.updated


@pytest.mark.parametrize("mode", ["new", "keep"])
def test_a_drain_fails_no_request(serve: Callable[..., Scene], trial: Trial, mode: str) -> None:
    scene = serve()
    before = nodes(trial)
    seen = continuity.observe(scene, "drain", drain, mode, RATE)
    assert seen.failed == 0, seen
    assert seen.sent > RATE
    trial.wait_for("one slot elsewhere", lambda: len(nodes(trial)) == 1 and nodes(trial) != before)


def test_a_spare_slot_takes_over_with_its_weights(serve: Callable[..., Scene], trial: Trial) -> None:
    scene = serve(weightCache={"spareSlots": 1})
    name = trial.wait_for("the spare is filled", lambda: spare(trial))
    seen = continuity.observe(scene, "drain", drain, "new", RATE)
    assert seen.failed == 0, seen
    trial.wait_for("one slot serves", lambda: len(serving(trial)) == 1)
    assert serving(trial) == [name]


def serving(trial: Trial) -> list[str]:
    return [one["name"] for one in trial.get("ld", NAME)["status"].get("slots", ()) if one.get("serving")]


def test_a_client_s_node_that_learns_late_fails_no_request(
    serve: Callable[..., Scene], trial: Trial, cluster: Cluster
) -> None:
    if not cluster.local:
        pytest.skip("stopping kube-proxy needs the local cluster")
    scene = serve()
    asking = trial.get("pod", "client")["spec"]["nodeName"]

    def perform(scene: Scene) -> Event:
        node, at = scene.slot()["status"]["node"], time.time()
        # what changes in Services meanwhile, the client's node learns late
        late = stopped(asking, "kube-proxy")
        with cluster.popen("drain", node, *DRAIN, stdout=subprocess.DEVNULL) as draining, late:
            trial.wait_for("it serves elsewhere", lambda: nodes(trial) not in ([], [node]), 240)
            time.sleep(LATE_S)
        assert draining.returncode == 0
        return at, scene.updated

    seen = continuity.observe(scene, "drain, and a late kube-proxy", perform, "new", RATE)
    assert seen.failed == 0, seen


def drained(cluster: Cluster, node: str) -> float:
    """Seconds that `kubectl drain` took, told for whoever reads along."""
    at = time.monotonic()
    cluster.kubectl("drain", node, *DRAIN, timeout=330)
    took = time.monotonic() - at
    print(f"drain: {took:.1f} s, promised {PROMISED_S + 10:g}")
    return took


def spare(trial: Trial) -> str:
    """The spare slot whose weights are held and whose filling pod has ended, "" if there is none."""
    done = {one["metadata"]["labels"]["ling.dev/slot"] for one in trial.engine_pods(NAME) if ended(one)}
    for slot in trial.items("lslot"):
        held = any(one["type"] == "WeightsHeld" and one["status"] == "True" for one in conditions(slot))
        if slot["spec"].get("spare") and held and slot["metadata"]["name"] in done:
            return str(slot["metadata"]["name"])
    return ""


def ended(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Succeeded")


def conditions(body: dict[str, Any]) -> list[dict[str, Any]]:
    return list(body.get("status", {}).get("conditions", ()))


def test_without_another_node_a_drain_ends_when_its_time_is_over(
    serve: Callable[..., Scene], trial: Trial, cluster: Cluster
) -> None:
    scene = serve(client=False, drain=IMPATIENT)
    node = scene.slot()["status"]["node"]
    others = [one["metadata"]["name"] for one in cluster.get("nodes")["items"] if one["metadata"]["name"] != node]
    for other in others:
        cluster.kubectl("cordon", other)
    assert drained(cluster, node) < PROMISED_S + SLACK_S
    # the agent's word: the operator may have been on that node too, and has none to go to
    trial.wait_for("nobody serves", lambda: not scene.recovered())
    cluster.kubectl("uncordon", node)
    trial.wait_for("it serves again", scene.recovered)
    trial.wait_condition(NAME, "Ready")


@pytest.fixture
def operator_away(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=0")
    cluster.wait_for("no operator", lambda: not cluster.items("pod", SYSTEM, "ling.dev/component=operator"))
    yield
    cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=1")
    cluster.kubectl("rollout", "status", "deployment/ling-operator", "-n", SYSTEM, "--timeout=240s")


def test_while_the_operator_is_away_the_agent_lets_a_drain_go_on(
    serve: Callable[..., Scene], cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    scene = serve(client=False, drain=IMPATIENT)
    node = scene.slot()["status"]["node"]
    request.getfixturevalue("operator_away")
    assert drained(cluster, node) < PROMISED_S + SLACK_S


def test_an_api_server_that_stops_in_the_middle_fails_no_request(serve: Callable[..., Scene], cluster: Cluster) -> None:
    if not cluster.local:
        pytest.skip("stopping the API server needs the local cluster")
    scene = serve()

    def perform(scene: Scene) -> Event:
        node, at = scene.slot()["status"]["node"], time.time()
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--timeout=1s", check=False)
        with api_server_stopped(cluster):
            time.sleep(API_STOPPED_S)
        words = ("drain", node, *DRAIN)
        cluster.wait_for("the drain ends", lambda: "drained" in cluster.kubectl(*words, check=False, timeout=330))
        return at, scene.updated

    seen = continuity.observe(scene, "drain without an API server", perform, "new", RATE)
    assert seen.failed == 0, seen


def test_uncordon_takes_the_replacement_back(serve: Callable[..., Scene], trial: Trial, cluster: Cluster) -> None:
    scene = serve(client=False)
    before = {one["metadata"]["uid"] for one in trial.slot_pods(NAME) + trial.engine_pods(NAME)}
    node = scene.slot()["status"]["node"]
    cluster.kubectl("cordon", node)
    trial.wait_for("a replacement", lambda: len(trial.items("lslot")) == 2)
    cluster.kubectl("uncordon", node)
    trial.wait_for("one slot", lambda: len(trial.items("lslot")) == 1)
    trial.wait_condition(NAME, "Ready")

    def as_before() -> bool:
        return {one["metadata"]["uid"] for one in trial.slot_pods(NAME) + trial.engine_pods(NAME)} == before

    trial.wait_for("its pods alone, or it was too late", lambda: as_before() or nodes(trial) not in ([], [node]))


def test_a_dead_node_s_slot_is_replaced_and_the_surplus_goes_when_it_returns(
    serve: Callable[..., Scene], trial: Trial, cluster: Cluster
) -> None:
    if not cluster.local:
        pytest.skip("a power cut needs the local cluster")
    scene = serve(client=False)
    node = scene.slot()["status"]["node"]
    cluster.node("kill", int(node.removeprefix("n")))
    try:
        # the operator may have been on that node too: then it comes first, 20 s after the node is known to be dead
        trial.wait_for("it serves elsewhere", lambda: nodes(trial) not in ([], [node]))
        trial.wait_condition(NAME, "Ready")
    finally:
        cluster.node("start", int(node.removeprefix("n")))
    trial.wait_for("one slot", lambda: len(trial.items("lslot")) == 1)
    trial.wait_condition(NAME, "Ready")
