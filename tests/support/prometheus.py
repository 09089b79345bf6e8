"""Debian's Prometheus: its programs, where `hack/bootstrap` unpacks them or on the PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from tests.support.chart import CHART, ROOT


def program(name: str) -> Path | None:
    """`prometheus` or `promtool`, None where it is not."""
    cache = Path(os.environ.get("LING_CACHE") or Path.home() / ".cache/ling")
    unpacked = cache / "tools/prometheus/usr/bin" / name
    found = shutil.which(name)
    return unpacked if unpacked.exists() else Path(found) if found else None


class Prometheus:
    """A running Prometheus of a cluster, with examples/prometheus.yml and the chart's alerts, on loopback."""

    def __init__(self, folder: Path, kubeconfig: Path, port: int) -> None:
        config = yaml.safe_load((ROOT / "examples/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CHART / "files/alerts.yaml")]
        for job in config["scrape_configs"]:
            for discovery in job["kubernetes_sd_configs"]:
                discovery["kubeconfig_file"] = str(kubeconfig)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._url = f"http://127.0.0.1:{port}"
        path = program("prometheus")
        assert path is not None, "Prometheus is not there: run hack/bootstrap cluster"
        flags = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(path), *flags, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
            )

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
