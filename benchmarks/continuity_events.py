"""What can happen to a LingDeployment under load: each event does it and says how to tell that all is well again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hack.cluster.access import AGENTS, SYSTEM, Cluster


@dataclass(slots=True)
class Scene:
    """The LingDeployment under load and where it stands."""

    cluster: Cluster
    namespace: str
    name: str
    url: str = ""

    def slot(self) -> dict[str, Any]:
        """The only slot, as the API server has it."""
        return self.cluster.items("lslot", self.namespace, f"ling.dev/deployment={self.name}")[0]

    def active(self) -> tuple[str, int]:
        """The engine pod that serves ("" = none) and the slot's term."""
        active = self.slot().get("status", {}).get("active", {})
        return active.get("pod", ""), active.get("term", 0)

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


Event = tuple[float, Callable[[], object]]  # when it happened; what is true when all is well again
Perform = Callable[[Scene], Event]


def kill_server(scene: Scene) -> Event:
    pod, term = scene.active()
    at = scene.cluster.kill_server(scene.namespace, pod)
    return at, lambda: scene.active()[0] and scene.active()[1] > term


def kill_agent(scene: Scene) -> Event:
    pod = scene.agent()
    before = scene.restarts(AGENTS, pod)
    at = scene.cluster.kill_container(AGENTS, pod, "agent")
    return at, lambda: scene.restarts(AGENTS, pod) > before and scene.recovered()


def kill_keeper(scene: Scene) -> Event:
    pod = scene.slot()["metadata"]["name"]
    before = scene.restarts(scene.namespace, pod)
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
        scene.cluster.kubectl("rollout", "status", f"{kind}/{name}", "-n", where, "--timeout=180s", timeout=200)
        return at, scene.recovered

    return perform


EVENTS: dict[str, Perform] = {
    "server": kill_server,
    "edit": edit,
    "agent": kill_agent,
    "keeper": kill_keeper,
    "agent-update": restart_rollout("daemonset"),
    "operator-update": restart_rollout("deployment"),
}
