"""What every other cluster test takes for granted: namespaces that enforce, addresses that reach across nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hack.cluster.access import ClusterError, client_pod

if TYPE_CHECKING:
    from tests.support.cluster import Trial


def test_namespace_refuses_a_pod_that_is_not_restricted(trial: Trial) -> None:
    pod = client_pod("root")
    pod["spec"]["securityContext"] = {}
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        trial.apply(pod)


def test_a_service_is_reached_from_the_other_node(trial: Trial) -> None:
    server = client_pod("server")
    server["spec"]["containers"][0]["command"] = ["python3", "-m", "http.server", "8000", "-d", "/etc"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    trial.apply(server, service)
    trial.kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=240s")
    client = trial.client(away_from=trial.get("pod", "server")["spec"]["nodeName"])
    assert trial.get("pod", client)["spec"]["nodeName"] != trial.get("pod", "server")["spec"]["nodeName"]
    url = f"http://{trial.get('service', 'server')['spec']['clusterIP']}/hostname"
    fetch = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=5).read().decode())"
    trial.wait_for("an answer", lambda: "server" in trial.exec(client, "sh", "-c", f'python3 -c "{fetch}" || true'))
