"""What cluster tests share: one cluster for the whole run with Ling installed, and a namespace of its own per test."""

from __future__ import annotations

import contextlib
import shutil
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.cluster.access import AGENTS, PATIENCE_S, SYSTEM, Cluster, ClusterError, client_pod, trial_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "build/logs"
PREFIX = "test-"
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("reached")
except OSError:
    pass
"""
STANDIN = "localhost/ling-engine-standin:dev"


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def cluster_under_test() -> Iterator[Cluster]:
    """A cluster with the product installed; its logs go to build/logs, and it ends whatever happens."""
    before = signal.signal(signal.SIGTERM, _stop)  # by default SIGTERM would end us without ending the cluster
    try:
        with trial_cluster(nodes=2, audit=True) as cluster, cluster.installed():
            try:
                yield cluster
                cluster.wait_for("nothing is left of any test", lambda: not leftovers(cluster))
            finally:
                collect_logs(cluster)
    finally:
        signal.signal(signal.SIGTERM, before)


def leftovers(cluster: Cluster) -> list[str]:
    """What our controllers or the kubelet still have to end of tests that are over, as namespace/kind/name.

    Namespaces themselves are not waited for: Kubernetes looks at one again only half a grace period later.
    """
    found = cluster.get("lingdeployments,lingslots,pods,resourceclaims", "--all-namespaces")["items"]
    ours = ((one["metadata"]["namespace"], one["kind"], one["metadata"]["name"]) for one in found)
    return ["/".join(one) for one in ours if one[0].startswith(PREFIX)]


def collect_logs(cluster: Cluster) -> None:
    """Copy the logs of the cluster's own programs and of our pods in the system namespace to build/logs."""
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    if cluster.local:
        shutil.copytree(cluster.kubeconfig.parent / "log", LOGS / "cluster")
    with contextlib.suppress(ClusterError):
        for pod in (*cluster.items("pod", SYSTEM), *cluster.items("pod", AGENTS)):
            name, where = pod["metadata"]["name"], pod["metadata"]["namespace"]
            for previous in ((), ("--previous",)):
                text = cluster.kubectl("logs", "-n", where, name, *previous, check=False)
                (LOGS / f"{name}{'-previous' if previous else ''}.log").write_text(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A test's own namespace in the cluster, with the verbs of `Cluster` bound to it."""

    cluster: Cluster
    name: str

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """What `kubectl -n NAMESPACE ARGS` prints."""
        return self.cluster.kubectl("-n", self.name, *args, stdin=stdin, check=check)

    def apply(self, *manifests: dict[str, Any] | str) -> None:
        """Apply manifests in the namespace."""
        self.cluster.apply(*manifests, namespace=self.name)

    def patch(self, kind: str, name: str, change: dict[str, Any]) -> None:
        """Merge a change into an object."""
        self.cluster.patch(kind, name, self.name, change)

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, or None."""
        return self.cluster.find(kind, name, self.name)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object that must be there."""
        return self.cluster.get(kind, name, namespace=self.name)

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind."""
        return self.cluster.items(kind, self.name, selector)

    def wait_for[T](self, what: str, probe: Callable[[], T | None], timeout: float = PATIENCE_S) -> T:
        """The first true value of `probe`; on a time-out the error shows what the namespace held."""
        try:
            return self.cluster.wait_for(what, probe, timeout)
        except ClusterError as late:
            raise AssertionError(f"{late}\n{self.describe()}") from late

    def wait_condition(
        self, name: str, condition: str, status: str = "True", timeout: float = PATIENCE_S
    ) -> dict[str, Any]:
        """A LingDeployment's condition, for its present generation."""
        try:
            return self.cluster.wait_condition("ld", name, self.name, condition, status, timeout)
        except ClusterError as late:
            raise AssertionError(f"{late}\n{self.describe()}") from late

    def slot_pods(self, deployment: str) -> list[dict[str, Any]]:
        """The slot pods of a LingDeployment."""
        return self.items("pod", f"ling.dev/deployment={deployment},ling.dev/component=slot")

    def engine_pods(self, deployment: str) -> list[dict[str, Any]]:
        """The engine pods of a LingDeployment."""
        return self.items("pod", f"ling.dev/deployment={deployment},ling.dev/component=engine")

    def wait_gone(self, deployment: str) -> None:
        """That nothing of a LingDeployment is left: its slots' numbers are free again, and its devices."""
        kinds = ("ld", "lslot", "resourceclaim")
        mine = f"ling.dev/deployment={deployment}"
        self.wait_for(
            f"nothing is left of {deployment}",
            lambda: not any(map(self.items, kinds)) and not self.items("pod", mine),
        )

    def engine(self, deployment: str) -> str:
        """The name of the only engine pod, once all others are gone."""
        (only,) = self.wait_for("one engine pod", lambda: _only(self.engine_pods(deployment)))
        return str(only["metadata"]["name"])

    def client(self, name: str = "client", *, away_from: str = "") -> str:
        """A pod to send requests from, ready; its name."""
        self.apply(client_pod(name, away_from=away_from))
        self.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=240s")
        return name

    def address(self, service: str, *, of: str = "client") -> str:
        """`http://IP:PORT` of a Service, once its node's kube-proxy lets a client reach it: that is late by itself."""
        spec = self.get("service", service)["spec"]
        ip, port = spec["clusterIP"], spec["ports"][0]["port"]
        self.wait_for("the client reaches the Service", lambda: self.exec(of, "python3", "-c", REACH, ip, str(port)))
        return f"http://{ip}:{port}"

    def wait_alone(self) -> None:
        """That earlier tests have nothing left: kubectl drains no pod without a controller, not even one that goes."""
        others = f"{self.name}/"
        self.cluster.wait_for(
            "what earlier tests had is gone",
            lambda: all(one.startswith(others) for one in leftovers(self.cluster)),
        )

    def exec(self, pod: str, *command: str, stdin: str | None = None, timeout: float = PATIENCE_S) -> str:
        """What a command prints that runs in a pod."""
        return self.cluster.exec(self.name, pod, *command, stdin=stdin, timeout=timeout)

    def describe(self) -> str:
        """Objects, the last events and the engines' last words: what a failed test needs to be understood."""
        parts = [self.kubectl("get", "ld,lslot,pod,service", "-o", "wide", check=False)]
        parts.append(self.kubectl("get", "ld,lslot", "-o", "yaml", check=False)[-6000:])
        parts.append(self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:])
        for pod in self.items("pod"):
            name = pod["metadata"]["name"]
            parts.append(f"--- {name}\n{self.kubectl('logs', name, '--tail=15', check=False)}")
        return "\n".join(parts)


def _only(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return pods if len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"] else []


@contextlib.contextmanager
def trial(cluster: Cluster) -> Iterator[Trial]:
    """A fresh namespace that enforces Pod Security `restricted`; that all in it goes is seen at the end of the run."""
    with cluster.namespace(f"{PREFIX}{uuid.uuid4().hex[:8]}", wait=False) as name:
        try:
            yield Trial(cluster=cluster, name=name)
        finally:
            # a namespace in which one still lives when it is emptied is looked at again minutes later only
            cluster.kubectl("delete", "ld", "--all", "-n", name, "--wait=false", check=False)


def deployment(name: str, source: str, *, memory: str = "64Mi", image: str = "", **spec: Any) -> dict[str, Any]:
    """A LingDeployment as a value; `spec` is merged over model, engine and weightCache."""
    body: dict[str, Any] = {"model": {"source": source}, "weightCache": {"memory": memory}}
    if image:
        body["engine"] = {"image": image}
    for key, value in spec.items():
        body[key] = {**body.get(key, {}), **value} if isinstance(value, dict) else value
    return {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": name}, "spec": body}
