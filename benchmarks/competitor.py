"""A pod that waits for the GPU a slot holds: how soon it runs after `kubectl delete ld`, and what is still held then.

    python -m benchmarks.competitor [--repeat 10] [--preset small]

Without KUBECONFIG it makes a cluster of its own, whose devices are those of Kubernetes' own DRA test driver. The times
count from kubectl's start, so its own tenth of a second is in them. `held`: shared memory that is in use when the
competitor runs and was not before the slot came, all of the machine's (local cluster only; new pods' files are in it).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, median, write
from hack.cluster.access import client_pod, trial_cluster

if TYPE_CHECKING:
    from hack.cluster.access import Cluster

ROOT = Path(__file__).parents[1]
NAME, POD = "holder", "competitor"
CLASS = "gpu.example.com"
GOAL_MS = 10_000.0
FILES = 1 << 20  # bytes in tmpfs that a pod more or less has: tokens, certificates, the runtime's own


def competitor(node: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A ResourceClaimTemplate, and a pod that wants a device of that node as soon as there is one."""
    device = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": POD},
        "spec": {"spec": {"devices": {"requests": [device]}}},
    }
    body = client_pod(POD)
    body["spec"] |= {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": POD}],
    }
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return template, body


def shared_bytes() -> int:
    """Shared memory in use on this machine, in bytes: memfd and tmpfs."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def once(cluster: Cluster, namespace: str, source: str) -> tuple[float, int, int]:
    """Milliseconds from the deletion to the competitor's running; bytes held while it served, and when it ran."""

    def phase() -> str:
        return str(cluster.get("pod", POD, namespace=namespace)["status"]["phase"])

    def waits() -> bool:
        seen = cluster.get("pod", POD, namespace=namespace)["status"].get("conditions", ())
        return any(each["type"] == "PodScheduled" and each["reason"] == "Unschedulable" for each in seen)

    before = shared_bytes()
    gpu = {"allocation": "ResourceClaim", "deviceClass": CLASS}
    spec = {"model": {"source": source}, "weightCache": {"memory": "1Gi"}, "gpu": gpu}
    head = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": NAME}}
    cluster.apply({**head, "spec": spec}, namespace=namespace)
    cluster.wait_condition("ld", NAME, namespace, "Ready")
    held = shared_bytes() - before
    node = cluster.get("lslot", f"{NAME}-0", namespace=namespace)["status"]["node"]
    cluster.apply(*competitor(node), namespace=namespace)
    cluster.wait_for("the competitor waits", waits)
    began = time.monotonic()
    cluster.kubectl("delete", "ld", NAME, "-n", namespace, "--wait=false")
    cluster.wait_for("the competitor runs", lambda: phase() == "Running")
    took = (time.monotonic() - began) * 1000
    after = shared_bytes() - before
    cluster.wait_for("the slot is gone", lambda: not cluster.items("lslot", namespace))
    cluster.kubectl("delete", "pod", POD, "-n", namespace)
    cluster.kubectl("delete", "resourceclaimtemplate", POD, "-n", namespace)
    cluster.wait_for("no claim", lambda: not cluster.items("resourceclaim", namespace))
    return took, held, after


def main(argv: list[str]) -> int:
    """0; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.competitor", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeat", type=int, default=10, help="times (%(default)s)")
    parser.add_argument("--preset", default="small", help="of the checkpoint (%(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "build/competitor.json", metavar="FILE")
    flags = parser.parse_args(argv)
    with trial_cluster() as cluster, cluster.installed(), cluster.namespace("ling-competitor") as namespace:
        source = cluster.make_model(NAME, preset=flags.preset)
        runs = [once(cluster, namespace, source) for _ in range(flags.repeat)]
        local = cluster.local
    times = [took for took, _, _ in runs]
    figures = [
        median("competitor.runs", "ms", times, most=GOAL_MS),
        Figure(name="competitor.runs-at-the-latest", unit="ms", value=max(times), most=GOAL_MS),
    ]
    if local:
        figures += [
            median("competitor.held-while-served", "bytes", [held for _, held, _ in runs]),
            median("competitor.held-when-it-runs", "bytes", [after for _, _, after in runs], most=FILES),
        ]
    for figure in figures:
        print(figure.line(), flush=True)
    write(flags.json, figures, {"preset": flags.preset})
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
