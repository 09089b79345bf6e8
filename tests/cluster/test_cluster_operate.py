"""What the people on call use, on real nodes: helm, kubectl ling, Prometheus; and how an installation is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from benchmarks import continuity
from benchmarks.continuity_events import Scene, kill_server
from hack.cluster.access import AGENTS, SYSTEM
from hack.ports import free_ports
from tests.support import cluster as support
from tests.support.chart import CHART
from tests.support.prometheus import Prometheus, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.continuity_events import Event
    from hack.cluster.access import Cluster

NAME = "shop"
RATE = 20.0
DEFAULT_IMAGE = "engine.images.reference"


@pytest.fixture
def scene(trial: support.Trial, model: str) -> Scene:
    """A LingDeployment that serves with the torch-free engine, and a client pod on the other node."""
    return serving(trial, model, support.STANDIN)


def serving(trial: support.Trial, model: str, image: str) -> Scene:
    """See `scene`; no image is the chart's default."""
    trial.apply(support.deployment(NAME, model, image=image))
    trial.wait_condition(NAME, "Ready")
    found = Scene(trial.cluster, trial.name, NAME)
    trial.client(away_from=found.slot()["status"]["node"])
    found.url = trial.address(NAME)
    return found


def ling(cluster: Cluster, *words: str, code: int = 0) -> str:
    """What `kubectl ling WORDS` prints; kubectl finds it on the PATH as it does for everybody."""
    path = os.pathsep.join((str(cluster.program.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    command = [str(cluster.program), "ling", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_helm_test_passes(cluster: Cluster) -> None:
    said = cluster.helm("test", "ling", "--namespace", SYSTEM, "--logs")
    assert "Phase:          Succeeded" in said
    assert "/readyz 200" in said


def pods(scene: Scene) -> dict[str, tuple[str, int]]:
    """uid and restarts of every slot and engine pod."""
    found = scene.cluster.items("pod", scene.namespace, "ling.dev/deployment")
    return {
        one["metadata"]["name"]: (
            one["metadata"]["uid"],
            sum(c["restartCount"] for c in one["status"]["containerStatuses"]),
        )
        for one in found
    }


def engine_images(scene: Scene) -> set[str]:
    found = scene.cluster.items("pod", scene.namespace, "ling.dev/component=engine")
    return {one["spec"]["containers"][0]["image"] for one in found}


def newer_chart(folder: Path) -> Path:
    """A chart of another version whose CRD has one default more."""
    copy = folder / "ling"
    shutil.copytree(CHART, copy)
    text = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(text.replace("0.1.0", "0.2.0"))
    path = copy / "files/crds/lingdeployments.yaml"
    crd = yaml.safe_load(path.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["engine"]["properties"]["novelty"] = {"type": "string", "default": "on"}
    path.write_text(yaml.safe_dump(crd))
    return copy


def test_an_upgrade_of_everything_touches_nothing_that_serves(trial: support.Trial, model: str, tmp_path: Path) -> None:
    """Chart version, images of operator, agent and of engines that name none, one default of the CRD more."""
    cluster = trial.cluster
    if not cluster.local:
        pytest.skip("other images are made by tagging those on the local cluster's nodes")
    for image in ("operator", "nodeagent", "engine-standin"):
        for number in (1, 2):
            names = (f"localhost/ling-{image}:dev", f"localhost/ling-{image}:next")
            cluster.node("exec", number, "ctr", "-n", "k8s.io", "image", "tag", "--force", *names)
    chart = newer_chart(tmp_path)

    def upgrade(_scene: Scene) -> Event:
        at = time.time()
        common = ("upgrade", "ling", str(chart), "--namespace", SYSTEM, "--wait", "--set", "image.registry=localhost")
        cluster.helm(*common, "--set", "image.tag=next", "--set", f"{DEFAULT_IMAGE}=localhost/ling-engine-standin:next")
        return at, scene.recovered

    try:
        cluster.install("--set", f"{DEFAULT_IMAGE}={support.STANDIN}")
        scene = serving(trial, model, "")
        before = pods(scene)
        seen = continuity.observe(scene, "chart-upgrade", upgrade, "keep", RATE)
        running = {
            one["spec"]["containers"][0]["image"] for space in (SYSTEM, AGENTS) for one in cluster.items("pod", space)
        }
        novelty = cluster.get("ld", NAME, namespace=scene.namespace)["spec"]["engine"]["novelty"]
        # whoever has been looked at since has been looked at after it: what a rollout does, has begun by then
        trial.apply(support.deployment("later", model, replicas=0))
        trial.wait_condition("later", "Ready", "False")
        time.sleep(3)
        after, image = pods(scene), engine_images(scene)
    finally:
        cluster.install()
    assert running == {"localhost/ling-operator:next", "localhost/ling-nodeagent:next"}
    assert novelty == "on", "the CRD was upgraded with the chart"
    assert after == before
    assert image == {support.STANDIN}, "the default of before goes with its revision"
    assert seen.sent > RATE
    assert seen.failed == 0, seen


def test_kubectl_ling_tells_and_does(scene: Scene, cluster: Cluster) -> None:
    where = ("-n", scene.namespace)
    shown = ling(cluster, "status", NAME, *where)
    assert f"{scene.namespace}/{NAME}: Ready" in shown
    assert "*active" in shown and "sealed" in shown and "LAST CHANGE" in shown
    assert NAME in ling(cluster, "top", "-A")
    assert "answers requests" in ling(cluster, "explain", NAME, *where)
    assert "there is no LingDeployment nobody" in ling(cluster, "status", "nobody", *where, code=2)

    first = scene.cluster.get("ld", NAME, namespace=scene.namespace)["status"]["currentRevision"]
    cluster.patch("ld", NAME, scene.namespace, {"spec": {"engine": {"contextLength": 2048}}})
    cluster.wait_for("the edit is everywhere", scene.updated)
    assert f"goes back to revision {first}" in ling(cluster, "rollback", NAME, *where)
    cluster.wait_for("it is back", lambda: scene.updated() and revision(scene) == first)

    def restart(_scene: Scene) -> Event:
        at = time.time()
        ling(cluster, "restart", NAME, *where)
        return at, scene.recovered

    former = scene.active()[0], pods(scene)
    seen = continuity.observe(scene, "restart", restart, "new", RATE)
    assert pods(scene)[NAME + "-0"] == former[1][NAME + "-0"], "the slot stays"
    assert seen.failures.get("refused", 0) == 0, seen
    assert seen.failed == 0, seen


def test_the_page_arrives_through_a_port_forward(scene: Scene, cluster: Cluster) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join((str(cluster.program.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [str(cluster.program), "ling", "dashboard", f"--port={port}"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as forward:
        try:
            assert cluster.wait_for("the page", lambda: answers(url)) == "text/html; charset=utf-8"
            with urllib.request.urlopen(f"{url}/events", timeout=120) as events:
                told = (shown(line, scene) for line in events if line.startswith(b"data:"))
                assert any(one.get("ready") for one in told)
                cluster.kubectl("delete", "ld", NAME, "-n", scene.namespace, "--wait=false")
                assert any(not one for one in told), "it is told live"
        finally:
            forward.terminate()


def answers(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as page:
            return str(page.headers["Content-Type"])
    except OSError:
        return None


def shown(event: bytes, scene: Scene) -> dict[str, Any]:
    """What an event of the page tells of the scene's LingDeployment, nothing when it has gone."""
    picture = json.loads(event.removeprefix(b"data:"))
    return next((one for one in picture["deployments"] if one["key"] == f"{scene.namespace}/{NAME}"), {})


def revision(scene: Scene) -> str:
    status: dict[str, Any] = scene.cluster.get("ld", NAME, namespace=scene.namespace)["status"]
    return str(status["currentRevision"])


def test_explain_names_the_wrong_image(trial: support.Trial, model: str) -> None:
    trial.apply(support.deployment(NAME, model, image="localhost/no-such-image:1"))
    trial.wait_for("it is noticed", lambda: "cannot be had" in ling(trial.cluster, "explain", NAME, "-n", trial.name))


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    if program("prometheus") is None:
        pytest.skip("Prometheus is not there: run hack/bootstrap cluster")
    if not cluster.local:
        pytest.skip("a cluster whose pods cannot be reached from here")
    running = Prometheus(tmp_path, free_ports(1)[0])
    yield running
    running.stop()
    sys.stdout.write(running.log())


def panels() -> list[str]:
    board = json.loads((CHART / "files/dashboard.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    everything = {"$namespace": ".*", "$deployment": ".*", "$__rate_interval": "10s"}
    for variable, value in everything.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def test_a_real_prometheus_scrapes_it_all(prometheus: Prometheus, scene: Scene, cluster: Cluster) -> None:
    def up() -> bool:
        here = f'job="ling-engine",namespace="{scene.namespace}"'
        wanted = {'job="ling-operator"': 1, 'job="ling-agent"': 2, here: 2}
        prometheus.discover(cluster.get("pods", "-A")["items"])
        try:
            return all(prometheus.number(f"sum(up{{{labels}}})") == count for labels, count in wanted.items())
        except OSError:
            return False

    cluster.wait_for("operator, agents, slot and engine are scraped", up)
    seen = continuity.observe(scene, "server", kill_server, "new", RATE)
    assert seen.sent > RATE
    own = f'namespace="{scene.namespace}",deployment="{NAME}"'
    for what, least in {
        "sum(ling_agent_failover_seconds_count)": 1,
        'sum(ling_agent_actuation_seconds_count{path="cold"})': 1,
        f'sum(ling_requests_total{{{own},status="200"}})': 1,
        f"histogram_quantile(0.5, sum by (le) (rate(ling_time_per_output_token_seconds_bucket{{{own}}}[5m])))": 1e-6,
        f'ling_operator_deployment_slots{{namespace="{scene.namespace}",name="{NAME}",state="serving"}}': 1,
    }.items():
        cluster.wait_for(what, lambda what=what, least=least: (prometheus.number(what) or 0) >= least)
    for expression in panels():
        prometheus.query(expression)  # HTTPError when Prometheus does not take it
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} == {"ok"}
    alerts = [one["labels"] for one in prometheus.get("alerts")["alerts"] if one["state"] == "firing"]
    ours = {one["alertname"] for one in alerts if one.get("namespace", scene.namespace) == scene.namespace}
    assert not ours - {"LingServersDie"}, alerts

    cluster.kubectl("delete", "ld", NAME, "-n", scene.namespace)
    for series in ("ling_operator_deployment_condition", "ling_operator_deployment_info"):
        gone = f'count({series}{{namespace="{scene.namespace}"}})'
        cluster.wait_for(f"{series} ends", lambda gone=gone: prometheus.number(gone) is None)


def test_it_can_be_left_with_the_operator_gone_first(scene: Scene, cluster: Cluster, trial: support.Trial) -> None:
    node = int(scene.slot()["status"]["node"].removeprefix("n"))
    if cluster.local:  # else finding none below would prove nothing
        assert "ling-server" in cluster.node("exec", node, "bash", "-c", HOLDERS)
    cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=0")
    try:
        cluster.wait_for("no operator", lambda: not cluster.items("pod", SYSTEM, "ling.dev/component=operator"))
        cluster.kubectl("delete", "ld", "--all", "-n", scene.namespace, "--timeout=240s")
        trial.wait_gone(NAME)  # Kubernetes looks at a namespace that is not empty yet again minutes later only
        cluster.kubectl("delete", "namespace", scene.namespace, "--wait=false")
        cluster.wait_for("the namespace is gone", lambda: cluster.find("namespace", scene.namespace) is None)
        if cluster.local:
            trial.wait_alone()
            cluster.wait_for("the agent holds nothing", lambda: held(agent_status(cluster, node)) == ({}, 0))
            left = cluster.node("exec", node, "bash", "-c", HOLDERS)
            assert not left, f"memory of ours is still held or mapped by {left}"
    finally:
        cluster.kubectl("scale", "deployment/ling-operator", "-n", SYSTEM, "--replicas=1")
        cluster.kubectl("rollout", "status", "deployment/ling-operator", "-n", SYSTEM, "--timeout=240s")


# by the kernel's word: processes of the node that map a region of ours, or have its descriptor
HOLDERS = """
for process in /proc/[0-9]*; do
  { grep -qs '/memfd:ling-' "$process/maps" || ls -l "$process/fd" 2>/dev/null | grep -q '/memfd:ling-'; } || continue
  echo "$(basename "$process") $(cat "$process/comm" 2>/dev/null)"
done
"""


def held(status: dict[str, Any]) -> tuple[dict[str, Any], int]:
    return status["slots"], status["openFds"]


def agent_status(cluster: Cluster, node: int) -> dict[str, Any]:
    """`ling-nodeagent status` of a node."""
    agents = cluster.items("pod", AGENTS, "ling.dev/component=agent")
    agent = next(one["metadata"]["name"] for one in agents if one["spec"]["nodeName"] == f"n{node}")
    found: dict[str, Any] = json.loads(cluster.exec(AGENTS, agent, "ling-nodeagent", "status", "--json"))
    return found
