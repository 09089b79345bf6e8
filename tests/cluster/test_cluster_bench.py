"""`ling-bench` as a Job beside a LingDeployment: examples/benchmark.yaml as it is, but for sizes and image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hack.cluster.access import IMAGES
from tests.support.cluster import ROOT, Trial, deployment

if TYPE_CHECKING:
    from collections.abc import Callable

NAME, JOB = "tiny", "tiny-bench"
SMALLER = {"--input-tokens=512": "--input-tokens=48", "--output-tokens=128": "--output-tokens=16"}


def manifest(address: str) -> str:
    """Of the example. The Service by its address: a cluster of this machine has no DNS."""
    text = (
        (ROOT / "examples/benchmark.yaml").read_text().replace("localhost/ling-operator:dev", IMAGES.format("operator"))
    )
    for words, fewer in {**SMALLER, "http://tiny\n": f"http://{address}\n"}.items():
        assert words in text
        text = text.replace(words, fewer)
    return text


def ended(trial: Trial) -> Callable[[], dict[str, Any] | None]:
    """The Job, once it is over."""

    def look() -> dict[str, Any] | None:
        job = trial.get("job", JOB)
        return (
            job if any(one["type"] in ("Complete", "Failed") for one in job["status"].get("conditions", ())) else None
        )

    return look


def test_a_job_measures_and_leaves_its_result_in_a_configmap(trial: Trial, model: str) -> None:
    trial.apply(deployment(NAME, model))
    trial.wait_condition(NAME, "Ready")
    trial.apply(manifest(trial.get("service", NAME)["spec"]["clusterIP"]))
    job = trial.wait_for("the end of the Job", ended(trial))
    data = trial.get("configmap", JOB).get("data", {})
    assert job["status"].get("succeeded") == 1, f"{data}\n{trial.describe()}"
    found = json.loads(data["result.json"])
    assert (data["verdict"], found["verdict"], found["acceptance"]) == ("ok", "ok", "none")
    assert (found["protocol"]["name"], found["protocol"]["input_tokens"]) == ("custom", 48)
    (side,) = found["sides"]
    assert [one["tokens"] for one in side["samples"]] == [16] * 10
    assert side["connections"] == 1, "all of it met one engine"
    stamp, slot = side["server"]["deployment"], trial.items("lslot")[0]
    assert stamp["revision"] == trial.get("ld", NAME)["status"]["currentRevision"]
    assert stamp["slots"][0]["pod"] == slot["status"]["active"]["pod"]
    assert [one["set"] for one in stamp["slots"][0]["identity"]] == [one["set"] for one in slot["status"]["weightSets"]]
    assert "TPOT, ms" in data["table.txt"]
    assert data["table.txt"].strip() in trial.kubectl("logs", f"job/{JOB}")
