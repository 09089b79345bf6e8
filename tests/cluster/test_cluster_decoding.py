"""An edit of spec.decoding on real nodes: the target's weights stay where they are, only the draft's are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.cluster import Trial, deployment

if TYPE_CHECKING:
    from hack.cluster.access import Cluster

NAME = "drafted"
SAID = re.compile(r"set=(\S+) role=(\w+) (filled|attached)=")
ASK = """
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[2], "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["text"])
"""


@pytest.fixture(scope="module")
def source(cluster: Cluster) -> str:
    """A checkpoint whose drafts, one in it and one beside it, are right most of the time."""
    return cluster.make_model(NAME, "--draft", "nextn", "--draft", "dspark", "--accept", "0.9", "--dense")


def how(trial: Trial) -> dict[str, tuple[str, str]]:
    """role -> (set, filled or attached), as the engine that serves has logged it."""
    pod = trial.items("lslot")[0]["status"]["active"]["pod"]
    return {role: (name, did) for name, role, did in SAID.findall(trial.kubectl("logs", pod))}


def answer(trial: Trial) -> str:
    return trial.exec("client", "python3", "-c", ASK, trial.address(NAME), NAME)


def edit(trial: Trial, decoding: dict[str, Any]) -> None:
    """Edits, and waits until only the new revision is left."""
    before = trial.get("ld", NAME)["status"]["updateRevision"]
    trial.patch("ld", NAME, {"spec": {"decoding": decoding}})

    def rolled() -> bool:
        pods = trial.engine_pods(NAME)
        return len(pods) == 1 and pods[0]["metadata"]["labels"]["ling.dev/revision"] != before

    trial.wait_for("only the new engine", rolled)
    trial.wait_condition(NAME, "Ready")


def performance(trial: Trial) -> dict[str, Any]:
    """Of the engine that serves now, once the slot and the LingDeployment tell the same."""

    def agreed() -> dict[str, Any] | None:
        status = trial.items("lslot")[0]["status"]
        engine = next((one for one in status["engines"] if one["pod"] == status["active"]["pod"]), {})
        told: dict[str, Any] = trial.get("ld", NAME)["status"].get("performance", {})
        same = all(told.get(key) == engine.get(key) for key in ("tpotMs", "acceptLength"))
        return told if told and engine.get("requests") and same else None

    return trial.wait_for("a measured answer", agreed)


def test_decoding_is_edited_with_the_weights_kept(trial: Trial, source: str) -> None:
    trial.apply(deployment(NAME, source, memory="256Mi", decoding={"algorithm": "NEXTN", "numSteps": 3}))
    trial.wait_condition(NAME, "Ready")
    trial.client()
    first, said = how(trial), answer(trial)
    assert {role: did for role, (_, did) in first.items()} == {"target": "filled", "nextn": "filled"}
    assert 1 < performance(trial)["acceptLength"] <= 4

    edit(trial, {"algorithm": "DSPARK", "numSteps": None})
    second = how(trial)
    assert second["target"] == (first["target"][0], "attached"), "the target was read again"
    assert second["dspark"][1] == "filled"
    assert answer(trial) == said
    assert performance(trial)["acceptLength"] > 1

    edit(trial, {"algorithm": "None"})
    assert how(trial) == {"target": (first["target"][0], "attached")}
    assert answer(trial) == said
    assert "acceptLength" not in performance(trial)

    def only_the_target() -> bool:
        sets = trial.items("lslot")[0]["status"]["weightSets"]
        return [(one["set"], one["state"]) for one in sets] == [(first["target"][0], "sealed")]

    trial.wait_for("the drafts' weights are released", only_the_target)
