"""What can happen to a LingDeployment under load: each event does it and says how to tell that all is well again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hack.cluster.access import AGENTS, SYSTEM, Cluster, ClusterError, client_pod

NEIGHBOUR = """
import importlib.util
for name in ("torch", "grpc"):
    if importlib.util.find_spec(name): importlib.import_module(name)
"""


@dataclass(slots=True)
class Scene:
    """The LingDeployment under load and where it stands."""

    cluster: Cluster
    namespace: str
    name: str
    url: str = ""
    client: str = "client"  # the pod that asks

    def slot(self) -> dict[str, Any]:
        """The slot that serves, or the only one, as the API server has it."""
        slots = self.cluster.items("lslot", self.namespace, f"ling.dev/deployment={self.name}")
        serving = [each for each in slots if _true(each, "Serving") and "deletionTimestamp" not in each["metadata"]]
        return min(serving or slots, key=lambda each: bool(each["spec"].get("leaving")))

    def node(self) -> str:
        """Where the slot is; "" while that is not known."""
        return str(self.slot().get("status", {}).get("node", ""))

    def standby_ready(self, mode: str) -> bool:
        """Whether somebody beside the active engine is ready to take over, in the way that was asked for."""
        wanted = "warm" if mode == "Warm" else "gated"
        return any(
            each["role"] == each.get("phase") == wanted for each in self.slot().get("status", {}).get("engines", ())
        )

    def active(self) -> tuple[str, int]:
        """The engine pod that serves ("" = none) and the slot's term."""
        active = self.slot().get("status", {}).get("active", {})
        return active.get("pod", ""), active.get("term", 0)

    def start_ms(self) -> float:
        """From the active server's fork to its accepting, as it told itself; 0 while it has not."""
        engines = self.slot().get("status", {}).get("engines", ())
        return max(
            (float(each.get("phases", {}).get("accepting", 0)) for each in engines if each["role"] == "active"),
            default=0,
        )

    def agent(self) -> str:
        """The agent's pod on the slot's node."""
        node = self.slot()["status"]["node"]
        pods = self.cluster.items("pod", AGENTS)
        agents = [p for p in pods if p["metadata"].get("ownerReferences", [{}])[0].get("kind") == "DaemonSet"]
        alive = [p for p in agents if p["spec"].get("nodeName") == node and "deletionTimestamp" not in p["metadata"]]
        return str(alive[0]["metadata"]["name"])

    def restarts(self, namespace: str, pod: str) -> int:
        """Container restarts of a pod that is ready; -1 while it is not."""
        status = self.cluster.get("pod", pod, namespace=namespace)["status"]
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        if conditions.get("Ready") != "True":
            return -1
        return sum(c["restartCount"] for c in status["containerStatuses"])

    def restarts_when_ready(self, namespace: str, pod: str) -> int:
        """Container restarts of a pod, once it is ready: what was killed before it was, would show nothing."""
        return self.cluster.wait_for(f"{pod} is ready", lambda: self.restarts(namespace, pod) + 1) - 1

    def recovered(self) -> bool:
        """The agent has told the slot's state since it started, and somebody serves."""
        conditions = {c["type"]: c["status"] for c in self.slot().get("status", {}).get("conditions", ())}
        return conditions.get("Serving") == "True" and conditions.get("Recovering") != "True"

    def updated(self) -> bool:
        """Every slot serves what the object asks for now."""
        now = self.cluster.get("ld", self.name, namespace=self.namespace)
        status = now.get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        current = status.get("observedGeneration") == now["metadata"]["generation"]
        wanted = now["spec"]["replicas"]
        return current and status.get("updatedReplicas") == wanted and conditions.get("UpdateInProgress") == "False"


def _true(item: dict[str, Any], kind: str) -> bool:
    found = item.get("status", {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in found)


Event = tuple[float, Callable[[], object]]  # when it happened; what is true when all is well again
Perform = Callable[[Scene], Event]


def kill_server(scene: Scene) -> Event:
    pod, term = scene.active()
    at = scene.cluster.kill_server(scene.namespace, pod)
    return at, lambda: scene.active()[0] and scene.active()[1] > term


def kill_agent(scene: Scene) -> Event:
    pod = scene.agent()
    before = scene.restarts_when_ready(AGENTS, pod)
    at = scene.cluster.kill_container(AGENTS, pod, "agent")
    return at, lambda: scene.restarts(AGENTS, pod) > before and scene.recovered()


def kill_keeper(scene: Scene) -> Event:
    pod = scene.slot()["metadata"]["name"]
    before = scene.restarts_when_ready(scene.namespace, pod)
    at = scene.cluster.kill_container(scene.namespace, pod, "keeper")
    return at, lambda: scene.restarts(scene.namespace, pod) > before and scene.recovered()


def edit(scene: Scene) -> Event:
    seen = scene.cluster.get("ld", scene.name, namespace=scene.namespace)
    length = 2048 if seen["spec"]["engine"].get("contextLength", 4096) == 4096 else 4096
    at = time.time()
    scene.cluster.patch("ld", scene.name, scene.namespace, {"spec": {"engine": {"contextLength": length}}})
    return at, scene.updated


def restart_rollout(kind: str) -> Perform:
    def perform(scene: Scene) -> Event:
        where = AGENTS if kind == "daemonset" else SYSTEM
        name = scene.cluster.items(kind, where)[0]["metadata"]["name"]
        at = time.time()
        scene.cluster.kubectl("rollout", "restart", f"{kind}/{name}", "-n", where)
        scene.cluster.kubectl("rollout", "status", f"{kind}/{name}", "-n", where, "--timeout=240s")
        return at, scene.recovered

    return perform


def upgrade(scene: Scene) -> Event:
    """A new revision that needs as much memory as the one before: beside it (handover) or in its place (swap)."""
    seen = scene.cluster.get("ld", scene.name, namespace=scene.namespace)
    queue = 4095 if seen["spec"]["engine"].get("maxQueue", 4096) == 4096 else 4096
    at = time.time()
    scene.cluster.patch("ld", scene.name, scene.namespace, {"spec": {"engine": {"maxQueue": queue}}})
    return at, scene.updated


def neighbours(scene: Scene) -> Event:
    """No event at all: two pods that are none of Ling's start beside the engine, one after the other, and end.

    They are of the engine's image and import what it imports: what a start costs a small machine, whoever starts.
    """
    node, engine = scene.node(), scene.active()[0]
    container = scene.cluster.get("pod", engine, namespace=scene.namespace)["spec"]["containers"][0]
    names = ("neighbour-1", "neighbour-2")
    waiting = list(names)

    def start() -> None:
        pod = client_pod(waiting.pop(0))
        limits = {key: value for key, value in container.get("resources", {}).items() if key != "claims"}
        pod["spec"] |= {"nodeName": node, "restartPolicy": "Never"}
        pod["spec"]["containers"][0] |= {
            "image": container["image"], "command": ["python3", "-c", NEIGHBOUR], "resources": limits,
        }  # fmt: skip
        scene.cluster.apply(pod, namespace=scene.namespace)

    def done() -> bool:
        pods = [scene.cluster.find("pod", name, scene.namespace) for name in names]
        ended = [pod for pod in pods if pod and pod["status"]["phase"] in ("Succeeded", "Failed")]
        wrong = [pod["metadata"]["name"] for pod in ended if pod["status"]["phase"] == "Failed"]
        if wrong:
            raise ClusterError(f"{wrong[0]} failed: {scene.cluster.kubectl('logs', wrong[0], '-n', scene.namespace)}")
        if len(ended) == len(names):
            scene.cluster.kubectl("delete", "pod", *names, "-n", scene.namespace, "--ignore-not-found", "--wait=false")
        elif waiting and len(ended) == len(names) - len(waiting):
            start()
        return not waiting and not any(pods)

    at = time.time()
    start()
    return at, done


def drain(scene: Scene) -> Event:
    """The slot's node is drained, but for the client's pods; it comes back when the slot serves elsewhere."""
    node = scene.node()
    words = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=170s"]
    at = time.time()
    draining = scene.cluster.popen(*words, f"--pod-selector=ling.dev/deployment={scene.name}", stdout=subprocess.PIPE)

    def done() -> bool:
        if draining.poll() is None:
            return False
        if draining.returncode:
            raise ClusterError(f"kubectl drain {node} ended with {draining.returncode}")
        moved = scene.node() != node and scene.recovered()
        if moved:
            scene.cluster.kubectl("uncordon", node)
        return moved

    return at, done


EVENTS: dict[str, Perform] = {
    "server": kill_server,
    "edit": edit,
    "agent": kill_agent,
    "keeper": kill_keeper,
    "agent-update": restart_rollout("daemonset"),
    "operator-update": restart_rollout("deployment"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An event on its stage: `standby` is the mode of the one standby, `tight`: memory for one engine only."""

    perform: Perform
    standby: str = "Warm"
    tight: bool = False
    death: bool = False  # what was in flight may break
    goal: float | None = None  # ms of the longest gap, beyond the steady one


ACTS: dict[str, Act] = {
    "neighbours": Act(perform=neighbours),  # nothing of ours: what the machine itself costs
    "handover": Act(perform=upgrade, goal=50),
    "failover-warm": Act(perform=kill_server, death=True, goal=200),
    "agent-upgrade": Act(perform=restart_rollout("daemonset"), goal=50),
    "operator-upgrade": Act(perform=restart_rollout("deployment"), goal=50),
    "drain": Act(perform=drain),
    "swap": Act(perform=upgrade, standby="Gated", tight=True),
    "failover-gated": Act(perform=kill_server, standby="Gated", tight=True, death=True),
}
