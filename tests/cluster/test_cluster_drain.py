"""`kubectl drain` as people type it, node death, uncordon on real nodes: clients notice nothing where they must not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import continuity
from benchmarks.continuity_events import Event, Scene
from hack.cluster.access import SYSTEM
from tests.support.cluster import STANDIN, Trial, deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.access import Cluster

NAME = "moved"
RATE = 25.0
API_STOPPED_S = 30.0
LATE_S = 10.0  # lameDuckSeconds are over, and more
SLACK_S = 60.0  # kubectl asks again every 5 s; a quiet machine needs less than 10 s more, a busy one half a minute
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
        scene.url = f"http://{trial.get('service', NAME)['spec']['clusterIP']}:80"
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
    trial.wait_for("the spare is filled", lambda: spare(trial))
    name = spare(trial)
    seen = continuity.observe(scene, "drain", drain, "new", RATE)
    assert seen.failed == 0, seen
    serving = [one["name"] for one in trial.get("ld", NAME)["status"]["slots"] if one.get("serving")]
    assert serving == [name]


@contextlib.contextmanager
def proxy_stopped(node: str) -> Iterator[None]:
    """SIGSTOP for the node's kube-proxy: what changes in Services meanwhile, its pods learn late."""
    found = subprocess.run(["ip", "netns", "pids", f"ling-{node}"], capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in found.stdout.split()]
    (proxy,) = (pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "kube-proxy")
    os.kill(proxy, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(proxy, signal.SIGCONT)


def test_a_client_s_node_that_learns_late_fails_no_request(
    serve: Callable[..., Scene], trial: Trial, cluster: Cluster
) -> None:
    if not cluster.local:
        pytest.skip("stopping kube-proxy needs the local cluster")
    scene = serve()
    asking = trial.get("pod", "client")["spec"]["nodeName"]

    def perform(scene: Scene) -> Event:
        node, at = scene.slot()["status"]["node"], time.time()
        with cluster.popen("drain", node, *DRAIN, stdout=subprocess.DEVNULL) as draining, proxy_stopped(asking):
            trial.wait_for("it serves elsewhere", lambda: nodes(trial) not in ([], [node]), 120)
            time.sleep(LATE_S)
        assert draining.returncode == 0
        return at, scene.updated

    seen = continuity.observe(scene, "drain, and a late kube-proxy", perform, "new", RATE)
    assert seen.failed == 0, seen


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
    scene = serve(client=False, drain={"replacementTimeoutSeconds": 10, "graceSeconds": 5})
    node = scene.slot()["status"]["node"]
    others = [one["metadata"]["name"] for one in cluster.get("nodes")["items"] if one["metadata"]["name"] != node]
    for other in others:
        cluster.kubectl("cordon", other)
    at = time.monotonic()
    cluster.kubectl("drain", node, *DRAIN, timeout=330)
    assert time.monotonic() - at < 10 + 5 + 2 + SLACK_S
    trial.wait_condition(NAME, "Ready", "False")
    cluster.kubectl("uncordon", node)
    trial.wait_condition(NAME, "Ready")


@pytest.fixture
def operator_away(cluster: Cluster) -> Iterator[None]:
    cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=0")
    cluster.wait_for("no operator", lambda: not cluster.items("pod", SYSTEM, "ling.dev/component=operator"))
    yield
    cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=1")
    cluster.kubectl("rollout", "status", "deployment/ling-operator", "-n", SYSTEM, "--timeout=180s")


def test_while_the_operator_is_away_the_agent_lets_a_drain_go_on(
    serve: Callable[..., Scene], cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    scene = serve(client=False, drain={"replacementTimeoutSeconds": 10, "graceSeconds": 5})
    node = scene.slot()["status"]["node"]
    request.getfixturevalue("operator_away")
    at = time.monotonic()
    cluster.kubectl("drain", node, *DRAIN, timeout=330)
    assert time.monotonic() - at < 10 + 5 + 2 + SLACK_S


@contextlib.contextmanager
def api_server_stopped(seconds: float) -> Iterator[None]:
    """SIGSTOP for that long: it answers nobody, and everybody's requests hang."""
    pids = subprocess.run(["ip", "netns", "pids", "ling-cp"], capture_output=True, text=True, check=True).stdout.split()
    (server,) = (int(pid) for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "kube-apiserver")
    os.kill(server, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        yield
    finally:
        os.kill(server, signal.SIGCONT)


def test_an_api_server_that_stops_in_the_middle_fails_no_request(serve: Callable[..., Scene], cluster: Cluster) -> None:
    if not cluster.local or os.environ.get("LING_LONG") != "1":
        pytest.skip("stopping the API server needs the local cluster and, as it takes minutes, LING_LONG=1")
    scene = serve()

    def perform(scene: Scene) -> Event:
        node, at = scene.slot()["status"]["node"], time.time()
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--timeout=1s", check=False)
        with api_server_stopped(API_STOPPED_S):
            pass
        cluster.wait_for(
            "the drain ends", lambda: "drained" in cluster.kubectl("drain", node, *DRAIN, check=False), 330
        )
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
    after = {one["metadata"]["uid"] for one in trial.slot_pods(NAME) + trial.engine_pods(NAME)}
    assert after == before or nodes(trial) != [node]


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
        trial.wait_for("it serves elsewhere", lambda: nodes(trial) not in ([], [node]), 180)
        trial.wait_condition(NAME, "Ready")
    finally:
        cluster.node("start", int(node.removeprefix("n")))
    trial.wait_for("one slot", lambda: len(trial.items("lslot")) == 1, 120)
    trial.wait_condition(NAME, "Ready")
