"""The pictures of docs/: dashboard, page and `kubectl ling status`, from one run on a cluster of this machine.

    python -m benchmarks.pictures [--folder docs/pictures]

Two LingDeployments serve on the CPU under load while a server is killed, an engine edited and a slot added. A real
Prometheus scrapes it all, and is then asked the queries of the chart's dashboard; benchmarks/dashboard_picture.py draws
its answers, since there is no Grafana here. The page is looked at with Chromium through `kubectl ling dashboard`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # tests.support

from benchmarks import continuity, dashboard_picture  # noqa: E402
from benchmarks.continuity_events import Scene, kill_server  # noqa: E402
from hack.cluster.access import client_pod, trial_cluster  # noqa: E402
from hack.ports import free_ports  # noqa: E402
from tests.support.browser import Browser  # noqa: E402
from tests.support.prometheus import Prometheus  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster

NAMESPACE = "shop"
DRAFTED, PLAIN = "assistant", "search"
DASHBOARD = ROOT / "charts/ling/files/dashboard.json"
RATE = 4.0  # requests a second to each
QUIET_S = 12.0  # between two events
LOOKS = 200  # points of a query


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--folder", type=Path, default=ROOT / "docs/pictures", help="where the pictures go")
    folder = given.parse_args().folder
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(trial_cluster())
        models = [cluster.make_model("plain"), cluster.make_model("drafted", *("--draft", "dspark", "--accept", "0.9"))]
        stack.enter_context(cluster.installed())
        stack.enter_context(cluster.namespace(NAMESPACE))
        scenes = served(cluster, models)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prometheus = Prometheus(scratch, free_ports(1)[0])
        stack.callback(prometheus.stop)
        stack.enter_context(discovering(prometheus, cluster))
        loads = [
            stack.enter_context(contextlib.closing(continuity.in_pod(one)("open", f"{RATE}", "keep"))) for one in scenes
        ]
        start = time.time()
        happenings(cluster, scenes)
        write_status(cluster)
        photograph(cluster, scenes[1], folder, scratch)
        time.sleep(QUIET_S)
        answered = [row for load in loads for row in load.rows()]
        failed = sum(bool(row["failed"]) for row in answered)
        draw(prometheus, start, time.time(), folder, f"{len(answered)} requests sent, {failed} failed")


def served(cluster: Cluster, models: list[str]) -> list[Scene]:
    """Both LingDeployments, Ready, and a client pod."""
    drafts = {"decoding": {"algorithm": "DSPARK"}, "standby": {"replicas": 1, "mode": "Warm"}}
    for name, model, more in ((PLAIN, models[0], {}), (DRAFTED, models[1], drafts)):
        spec = {"model": {"source": model}, "weightCache": {"memory": "512Mi"}, "replicas": 1, **more}
        head = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": name}}
        cluster.apply({**head, "spec": spec}, namespace=NAMESPACE)
    cluster.apply(client_pod("client"), namespace=NAMESPACE)
    cluster.kubectl("wait", "pod/client", "-n", NAMESPACE, "--for=condition=Ready", "--timeout=60s")
    scenes = []
    for name in (PLAIN, DRAFTED):
        cluster.wait_condition("ld", name, NAMESPACE, "Ready", timeout=240)
        address = cluster.get("service", name, namespace=NAMESPACE)["spec"]["clusterIP"]
        scenes.append(Scene(cluster, NAMESPACE, name, url=f"http://{address}:80"))
    cluster.wait_for("a standby", lambda: scenes[1].standby_ready("Warm"), 180)
    return scenes


@contextlib.contextmanager
def discovering(prometheus: Prometheus, cluster: Cluster) -> Iterator[None]:
    """Keeps telling Prometheus which pods there are."""
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            prometheus.discover(cluster.get("pods", "-A")["items"])
            done.wait(2.0)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def happenings(cluster: Cluster, scenes: list[Scene]) -> None:
    """A death with a standby, a death without, an edit, one slot more."""
    plain, drafted = scenes
    for scene in (drafted, plain):
        time.sleep(QUIET_S)
        _, done = kill_server(scene)
        cluster.wait_for("somebody serves again", done, 120)
    time.sleep(QUIET_S)
    cluster.patch("ld", DRAFTED, NAMESPACE, {"spec": {"engine": {"contextLength": 2048}}})
    cluster.wait_for("the edit is everywhere", drafted.updated, 240)
    time.sleep(QUIET_S)
    cluster.kubectl("scale", f"ld/{PLAIN}", "-n", NAMESPACE, "--replicas=2")
    cluster.wait_for("a second slot serves", plain.updated, 240)
    time.sleep(QUIET_S)


def environment(cluster: Cluster) -> dict[str, str]:
    """For `kubectl ling`."""
    path = os.pathsep.join((str(cluster.program.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}


def write_status(cluster: Cluster) -> None:
    command = [str(cluster.program), "ling", "status", DRAFTED, "-n", NAMESPACE]
    said = subprocess.run(command, env=environment(cluster), capture_output=True, text=True, timeout=60, check=True)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/status.txt").write_text(said.stdout)  # for docs/production.md, by hand


def photograph(cluster: Cluster, drafted: Scene, folder: Path, scratch: Path) -> None:
    """The page in light and dark, each while an edit's new engine is on its way."""
    (port,) = free_ports(1)
    command = [str(cluster.program), "ling", "dashboard", f"--port={port}"]
    with subprocess.Popen(command, env=environment(cluster), stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            while "Forwarding" not in forward.stdout.readline():
                assert forward.poll() is None, "kubectl ling dashboard has ended"
            for scheme, context in (("light", 1536), ("dark", 1792)):
                profile = scratch / scheme
                profile.mkdir()
                with Browser(profile) as browser:
                    browser.open(f"http://127.0.0.1:{port}/", scheme=scheme)
                    browser.wait_for(f"{NAMESPACE}/{DRAFTED}")
                    cluster.patch("ld", DRAFTED, NAMESPACE, {"spec": {"engine": {"contextLength": context}}})
                    browser.wait_for("the new engine is checked")
                    time.sleep(1.0)  # transitions of colours
                    browser.picture(folder / f"page-{scheme}.png")
                    cluster.wait_for("the edit is everywhere", drafted.updated, 240)
        finally:
            forward.terminate()


def ask(prometheus: Prometheus, board: dict[str, Any], start: float, end: float) -> list[dashboard_picture.Series]:
    """What the queries of a panel had from `start` to `end`."""
    found = []
    for target in board.get("targets", ()):
        expression = target["expr"]
        for variable, value in {"$namespace": ".*", "$deployment": ".*", "$__rate_interval": "10s"}.items():
            expression = expression.replace(variable, value)
        step = f"{(end - start) / LOOKS:.3f}"
        answer = prometheus.get("query_range", query=expression, start=f"{start}", end=f"{end}", step=step)
        for one in answer["result"]:
            points = tuple((float(at), float(value)) for at, value in one["values"])
            name = dashboard_picture.legend(target.get("legendFormat", ""), one["metric"])
            found.append(dashboard_picture.Series(name=name, points=points))
    return found


def draw(prometheus: Prometheus, start: float, end: float, folder: Path, counts: str) -> None:
    boards = json.loads(DASHBOARD.read_text())["panels"]
    panels = [dashboard_picture.panel(one, ask(prometheus, one, start, end)) for one in boards]
    said = (
        f"Queries of charts/ling/files/dashboard.json, answered by Prometheus over {end - start:.0f} s of a "
        f"two-node test cluster (CPU, tiny checkpoints): {counts}. "
        "Not Grafana's drawing."
    )
    (folder / "dashboard.svg").write_text(dashboard_picture.draw(panels, start, end, said))


if __name__ == "__main__":
    main()
