"""The life of a LingDeployment on real nodes: it serves, is scaled, edited and deleted; with the torch-free engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.cluster import STANDIN, Trial, deployment

if TYPE_CHECKING:
    from collections.abc import Callable

ASK = """
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[2], "prompt": "12345678", "max_tokens": int(sys.argv[3])}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""
NAME = "served"


def complete(trial: Trial, *, tokens: int = 4) -> dict[str, Any]:
    """A completion through the Service, from a pod on another node than the slot's."""
    if trial.find("pod", "client") is None:
        trial.client(away_from=trial.slot_pods(NAME)[0]["spec"]["nodeName"])
    answer: dict[str, Any] = json.loads(
        trial.exec("client", "python3", "-c", ASK, trial.address(NAME), NAME, str(tokens))
    )
    return answer


@pytest.fixture
def serve(trial: Trial, model: str) -> Callable[..., Trial]:
    """Applies a LingDeployment `served` and waits until it is Ready."""

    def apply(**spec: Any) -> Trial:
        trial.apply(deployment(NAME, model, **{"image": STANDIN, **spec}))
        trial.wait_condition(NAME, "Ready")
        return trial

    return apply


def test_first_start_serves_through_the_service(serve: Callable[..., Trial]) -> None:
    trial = serve()
    answer = complete(trial)
    assert answer["usage"]["completion_tokens"] == 4
    slot = trial.items("lslot")[0]["status"]
    assert [one["state"] for one in slot["weightSets"]] == ["sealed"]
    assert slot["active"]["pod"] == trial.engine_pods(NAME)[0]["metadata"]["name"]
    assert (
        slot["node"] == trial.slot_pods(NAME)[0]["spec"]["nodeName"] == trial.engine_pods(NAME)[0]["spec"]["nodeName"]
    )
    conditions = {c["type"]: c["status"] for c in trial.get("ld", NAME)["status"]["conditions"]}
    assert conditions["WeightsCached"] == "True"
    assert conditions.get("Degraded", "False") == "False"


def test_what_a_person_sees(serve: Callable[..., Trial]) -> None:
    trial = serve()
    lines = trial.kubectl("get", "ld").splitlines()
    assert lines[0].split() == ["NAME", "READY", "SERVING", "REVISION", "MESSAGE", "AGE"]
    assert lines[1].split()[:3] == [NAME, "True", "1/1"]
    assert trial.kubectl("get", "lslot").splitlines()[1].split()[1:3] == ["True", "True"]
    seen = trial.get("ld", NAME)["metadata"]
    assert "finalizers" not in seen
    assert not [name for name in seen.get("annotations", {}) if "kopf" in name]


def test_scale_to_zero_releases_and_one_serves_again(serve: Callable[..., Trial]) -> None:
    trial = serve()
    trial.kubectl("scale", f"ld/{NAME}", "--replicas=0")
    trial.wait_for("no slot and no pod", lambda: not trial.items("lslot") and not mine(trial, "pod"))
    assert trial.wait_condition(NAME, "Ready", "False")
    trial.kubectl("scale", f"ld/{NAME}", "--replicas=1")
    trial.wait_condition(NAME, "Ready")
    assert complete(trial)["choices"]


def test_two_replicas_are_two_slots(serve: Callable[..., Trial]) -> None:
    trial = serve(replicas=2)
    trial.wait_for("two slots serve", lambda: trial.get("ld", NAME)["status"].get("readyReplicas") == 2)
    assert sorted(slot["metadata"]["name"] for slot in trial.items("lslot")) == [f"{NAME}-0", f"{NAME}-1"]


def test_old_revisions_go(trial: Trial, model: str) -> None:
    """A LingDeployment of no replicas, edited eight times: five revisions stay beside those in use."""
    trial.apply(deployment(NAME, model, image=STANDIN, replicas=0))

    def known() -> set[str]:
        return {one["metadata"]["name"] for one in trial.items("controllerrevision")}

    trial.wait_for("the first revision", known)
    for edit in range(1, 9):
        before = trial.wait_for("the edit before is seen", lambda: settled(trial) and known())
        trial.patch("ld", NAME, {"spec": {"engine": {"contextLength": 4096 + 64 * edit}}})
        trial.wait_for("its revision", lambda before=before: known() - before)
    trial.wait_for("the oldest go", lambda: settled(trial) and len(known()) <= 7)
    assert len(known()) >= 6


def settled(trial: Trial) -> bool:
    found = trial.get("ld", NAME)
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])


def test_delete_leaves_nothing(serve: Callable[..., Trial]) -> None:
    trial = serve()
    trial.kubectl("delete", "ld", NAME, "--wait=true")
    kinds = ("lslot", "pod", "service", "pdb", "controllerrevision")
    trial.wait_for("nothing is left", lambda: not [one for kind in kinds for one in mine(trial, kind)])


def mine(trial: Trial, kind: str) -> list[dict[str, Any]]:
    return trial.items(kind, f"ling.dev/deployment={NAME}")


def test_edit_rolls_and_keeps_one_engine(serve: Callable[..., Trial]) -> None:
    trial = serve()
    before = trial.get("pod", trial.engine(NAME))["metadata"]
    trial.patch("ld", NAME, {"spec": {"engine": {"contextLength": 2048}}})
    trial.wait_condition(NAME, "UpdateInProgress", "False")
    after = trial.get("pod", trial.engine(NAME))["metadata"]
    assert after["name"] != before["name"]
    assert after["labels"]["ling.dev/revision"] != before["labels"]["ling.dev/revision"]
    assert complete(trial)["choices"]


def test_an_edit_with_a_broken_image_is_given_up_and_never_stops_the_old(serve: Callable[..., Trial]) -> None:
    trial = serve()
    broken = {"engine": {"image": "localhost/no-such-image:1"}, "rollout": {"progressDeadlineSeconds": 10}}
    trial.patch("ld", NAME, {"spec": broken})
    assert trial.wait_condition(NAME, "Progressing", "False")["reason"] == "ProgressDeadlineExceeded"
    assert trial.cluster.condition("ld", NAME, trial.name, "Ready")["status"] == "True"  # type: ignore[index]
    assert complete(trial)["choices"]


def test_reference_engine_streams_and_counts(trial: Trial, model: str) -> None:
    trial.apply(deployment(NAME, model, memory="512Mi"))
    trial.wait_condition(NAME, "Ready")
    answer = complete(trial, tokens=2)
    assert answer["usage"]["prompt_tokens"] > 0
    assert 0 < answer["usage"]["completion_tokens"] <= 2
