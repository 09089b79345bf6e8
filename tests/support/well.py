"""Whether the cluster is as a test may expect it: every node, every agent and the operator at work.

A test that cuts a node's power, stops the API server, drains a node or restarts the operator ends when what it is about
has come true. The cluster may need longer, and the next test, whichever that is, begins when it is well again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hack.cluster.access import AGENTS, SYSTEM, ClusterError

from ling_api.names import RESOURCE

if TYPE_CHECKING:
    from hack.cluster.access import Cluster

PATIENCE_S: Final = 300.0  # a node that was dead comes back, and its agent with it
OPERATOR: Final = "ling.dev/component=operator"


def settle(cluster: Cluster) -> None:
    """Wait until the cluster is well; AssertionError that says what is not."""
    try:
        cluster.wait_for("the cluster is well", lambda: not unwell(cluster), PATIENCE_S)
    except ClusterError as late:
        raise AssertionError(f"{late}: {'; '.join(unwell(cluster))}") from late


def unwell(cluster: Cluster) -> list[str]:
    """What is not at work yet, or on its way out, in words."""
    wrong = [f"node {node['metadata']['name']}: {_trouble(node)}" for node in cluster.get("nodes")["items"]]
    for kind, where in (("daemonset", AGENTS), ("deployment", SYSTEM)):
        wrong += [f"{kind} {one['metadata']['name']}: {_behind(one)}" for one in cluster.items(kind, where)]
    operators = cluster.items("pod", SYSTEM, OPERATOR)
    leaving = [one["metadata"]["name"] for one in operators if "deletionTimestamp" in one["metadata"]]
    wrong.append(f"operator: {f'{len(operators)} pods, leaving {leaving}' if leaving or len(operators) != 1 else ''}")
    return [one for one in wrong if not one.endswith(": ")]


def _trouble(node: dict[str, Any]) -> str:
    spec, status = node["spec"], node["status"]
    taints = [one["key"] for one in spec.get("taints", ()) if one["key"].startswith("node.kubernetes.io/")]
    if taints:
        return f"tainted {', '.join(taints)}"
    if not any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())):
        return "not Ready"
    return "" if status.get("allocatable", {}).get(RESOURCE, "0") != "0" else f"no {RESOURCE}: its agent is away"


def _behind(workload: dict[str, Any]) -> str:
    status = workload["status"]
    if status.get("observedGeneration") != workload["metadata"]["generation"]:
        return "not looked at yet"
    if workload["kind"] == "DaemonSet":
        wanted, updated, ready = "desiredNumberScheduled", "updatedNumberScheduled", "numberReady"
        counts = [status.get(key, 0) for key in (wanted, updated, ready)]
    else:
        counts = [workload["spec"]["replicas"], status.get("updatedReplicas", 0), status.get("readyReplicas", 0)]
    return "" if len(set(counts)) == 1 else f"wanted, updated, ready: {counts}"
