"""The operator with many LingDeployments: from an edit to the pod that it asks for, memory, and a cold start.

    python -m benchmarks.operator_scale [--objects 1000] [--serving 50] [--seconds 60]

A real API server with its garbage collector on loopback; pods are bound to a node that is none, and a stand-in writes
what kubelet and agent would. All objects are edited once, in random order, within `--seconds`. The clock is the API
server's audit log: the edit's arrival to the arrival of the engine pod's creation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.ports import free_port
from tests.support import apiserver, fake_node

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
LING = "/apis/ling.dev/v1alpha1/namespaces/scale/lingdeployments"
GOALS = {"edit-to-pod.p99": 1.0, "memory": 300.0, "cold-start": 60.0}
APPLY = "application/apply-patch+yaml"

type Object = dict[str, Any]


class Operator:
    """The real process."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        images = dict.fromkeys(("NODEAGENT", "ENGINE_REFERENCE", "ENGINE_SGLANG"), "image:1")
        environment = {**os.environ, **{f"LING_{name}_IMAGE": image for name, image in images.items()}}
        self.port = free_port()
        with log.open("ab") as output:
            command = [sys.executable, "-m", "ling_operator", "run", "--port", str(self.port)]
            command += ["--agent-namespace", fake_node.AGENT_NAMESPACE]
            environment["KUBECONFIG"] = str(kubeconfig)
            self.child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def metric(self, pattern: str) -> float:
        """A sample of its metrics, 0 if there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                found = re.search(rf"^{pattern} (\S+)$", answer.read().decode(), re.MULTILINE)
        except OSError:
            return 0.0
        return float(found[1]) if found else 0.0

    def megabytes(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> None:
        self.child.terminate()
        self.child.wait(30)


def until(what: str, true: Callable[[], bool], seconds: float) -> float:
    """Seconds until it is true."""
    start = time.monotonic()
    while not true():
        if time.monotonic() - start > seconds:
            raise SystemExit(f"operator_scale: not within {seconds:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - start


def body(number: int, serving: int, context: int) -> Object:
    """One LingDeployment; the first `serving` of them have a slot."""
    spec = {
        "model": {"source": "host:///tiny"},
        "engine": {"contextLength": context},
        "weightCache": {"memory": "64Mi"},
        "replicas": int(number < serving),
    }
    head = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": name_of(number)}}
    return {**head, "spec": spec}


def name_of(number: int) -> str:
    return f"ld-{number}"


def put(node: fake_node.FakeNode, number: int, serving: int, context: int) -> None:
    node.call(
        "PATCH",
        f"{LING}/{name_of(number)}",
        body(number, serving, context),
        APPLY,
        fieldManager="person",
        force="true",
    )


def calm(node: fake_node.FakeNode, serving: int) -> bool:
    """Every object is as it was asked for, and its status says so."""
    for one in node.call("GET", LING).get("items") or ():
        status = one.get("status") or {}
        reasons = {each["type"]: each["reason"] for each in status.get("conditions") or ()}
        if status.get("observedGeneration") != one["metadata"]["generation"] or reasons["Progressing"] != "Complete":
            return False
        if int(one["metadata"]["name"].removeprefix("ld-")) < serving and status.get("readyReplicas") != 1:
            return False
    return True


def moments(audit: Path, begin: float) -> dict[str, tuple[float, float]]:
    """Edit and pod creation of each object that was edited after `begin`, as the API server received them."""
    edits: dict[str, float] = {}
    pods: dict[str, float] = {}
    for line in audit.read_text().splitlines():
        event = json.loads(line)
        ref, at = event.get("objectRef") or {}, datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if at < begin or ref.get("namespace") != "scale":
            continue
        if ref["resource"] == "lingdeployments" and event["verb"] == "patch" and not ref.get("subresource"):
            edits[ref["name"]] = at
        elif ref["resource"] == "pods" and event["verb"] == "create" and not ref.get("subresource"):
            pods.setdefault(ref["name"].rsplit("-", 3)[0], at)
    return {name: (edits[name], at) for name, at in pods.items() if name in edits}


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(flags: argparse.Namespace, folder: Path) -> dict[str, float]:
    """All figures: seconds and MiB."""
    with (
        apiserver.control_plane(folder / "plane", audit=True) as plane,
        fake_node.FakeNode(plane.url, apiserver.TOKEN, str(plane.folder / "server.crt"), period=0.2) as node,
        ThreadPoolExecutor(8) as pool,
    ):
        node.call("POST", "/api/v1/namespaces", {"metadata": {"name": "scale"}})
        every = range(flags.objects)
        list(pool.map(lambda n: put(node, n, flags.serving, 4096), every))
        operator = Operator(plane.kubeconfig, folder / "operator.log")
        first = until("everything is made", lambda: calm(node, flags.serving), 600)
        operator.end()
        operator = Operator(plane.kubeconfig, folder / "operator.log")
        looks, waiting = r'ling_operator_reconciles_total{result="ok"}', "ling_operator_queue_depth"

        def looked() -> bool:
            return operator.metric(re.escape(looks)) >= flags.objects and operator.metric(waiting) == 0

        cold = until("a cold start looked at all", looked, 300)
        order = list(every)
        random.Random(1).shuffle(order)
        begin = time.time()
        for index, number in enumerate(order):
            time.sleep(max(0.0, begin + index * flags.seconds / len(order) - time.time()))
            pool.submit(put, node, number, flags.serving, 8192)
        settled = until("the edits are done", lambda: calm(node, flags.serving), 600)
        found = moments(plane.folder / "audit.log", begin)
        memory = operator.megabytes()
        operator.end()
    waits = [pod - edit for edit, pod in found.values()]
    if len(waits) != flags.serving:
        raise SystemExit(f"operator_scale: {len(waits)} pods of {flags.serving} were made after the edits")
    return {
        "edit-to-pod.p50": statistics.median(waits),
        "edit-to-pod.p99": percentile(waits, 0.99),
        "edit-to-pod.max": max(waits),
        "memory": memory,
        "cold-start": cold,
        "first-start": first,
        "settled-after-edits": settled,
    }


def main(argv: list[str]) -> int:
    """Exit code 1 if a figure misses its goal."""
    parser = argparse.ArgumentParser(prog="operator_scale", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--objects", type=int, default=1000, help="LingDeployments (%(default)s)")
    parser.add_argument("--serving", type=int, default=50, help="of them with a slot (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="in which all are edited (%(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "build/operator-scale.json")
    flags = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ling-scale-") as folder:
        found = measure(flags, Path(folder))
    flags.json.parent.mkdir(parents=True, exist_ok=True)
    flags.json.write_text(json.dumps({"objects": flags.objects, "serving": flags.serving, "figures": found}, indent=1))
    for name, value in found.items():
        goal = GOALS.get(name)
        unit = "MiB" if name == "memory" else "s"
        print(f"operator-scale.{name} {value:.3f} {unit} {goal or '-'} {'MISS' if goal and value > goal else 'ok'}")
    return int(any(found[name] > goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
