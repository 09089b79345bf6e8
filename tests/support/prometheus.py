"""Debian's Prometheus: its programs, where `hack/bootstrap` unpacks them or on the PATH."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tests.support.chart import CHART, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable


def program(name: str) -> Path | None:
    """`prometheus` or `promtool`, None where it is not."""
    cache = Path(os.environ.get("LING_CACHE") or Path.home() / ".cache/ling")
    unpacked = cache / "tools/prometheus/usr/bin" / name
    found = shutil.which(name)
    return unpacked if unpacked.exists() else Path(found) if found else None


class Prometheus:
    """A running Prometheus with examples/prometheus.yml and the chart's alerts, on loopback.

    Debian's is built without the discovery of Kubernetes, so `discover` does that part: it writes every port of every
    pod to a file, with the labels that the discovery would give it. The relabelling of the example is Prometheus' own.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        config = yaml.safe_load((ROOT / "examples/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CHART / "files/alerts.yaml")]
        for job in config["scrape_configs"]:
            assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
            job["file_sd_configs"] = [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._url = f"http://127.0.0.1:{port}"
        path = program("prometheus")
        assert path is not None, "Prometheus is not there: run hack/bootstrap cluster"
        flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(path), *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
            )

    def discover(self, pods: Iterable[dict[str, Any]]) -> None:
        """What Prometheus' discovery of Kubernetes, role pod, would find."""
        groups = [_group(pod, container, port) for pod in pods for container in pod["spec"]["containers"]
                  for port in container.get("ports", ()) if pod.get("status", {}).get("podIP")]  # fmt: skip
        new = self._folder / "targets.new"
        new.write_text(json.dumps(groups))
        new.replace(self._folder / "targets.json")

    def log(self) -> str:
        """Its last words."""
        return (self._folder / "prometheus.log").read_text()[-3000:]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str, **query: str) -> Any:
        """`data` of an answer of its API. OSError while it is starting."""
        text = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{text}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression has now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def number(self, expression: str) -> float | None:
        """The only value of an expression, None when it has none."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if len(found) == 1 else None


def _group(pod: dict[str, Any], container: dict[str, Any], port: dict[str, Any]) -> dict[str, Any]:
    meta = pod["metadata"]
    labels = {
        "namespace": meta["namespace"],
        "pod_name": meta["name"],
        "pod_node_name": pod["spec"]["nodeName"],
        "pod_container_name": container["name"],
        "pod_container_port_name": port.get("name", ""),
    }
    for key, value in meta.get("labels", {}).items():
        labels["pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)] = value
    address = f"{pod['status']['podIP']}:{port['containerPort']}"
    return {"targets": [address], "labels": {f"__meta_kubernetes_{key}": value for key, value in labels.items()}}
