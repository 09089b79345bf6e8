"""One claim per slot on real nodes: Kubernetes' own DRA test driver with one device per node stands in for the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.competitor import CLASS, competitor
from tests.support.cluster import STANDIN, Trial, deployment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "claimed"
CLAIM = {"allocation": "ResourceClaim", "deviceClass": CLASS}
DRAIN = {"lameDuckSeconds": 1, "graceSeconds": 900}  # what waits for the end of that time, waits in vain here
PLUGIN = {"allocation": "DevicePlugin", "resource": "example.com/resource"}


@pytest.fixture(scope="module", autouse=True)
def _devices(cluster: Any) -> None:
    if not cluster.find("deviceclass", CLASS):
        pytest.skip("no stand-in devices: hack/cluster/up makes them")


@pytest.fixture
def serve(trial: Trial, model: str) -> Iterator[Callable[..., Trial]]:
    """Applies a LingDeployment and waits until it is Ready; its devices are free again afterwards."""

    def apply(gpu: dict[str, Any] = CLAIM, **spec: Any) -> Trial:
        trial.apply(deployment(NAME, model, image=STANDIN, gpu=gpu, drain=DRAIN, **spec))
        trial.wait_condition(NAME, "Ready")
        return trial

    yield apply
    trial.kubectl("delete", "pod", "competitor", "--ignore-not-found", "--wait=false")
    trial.kubectl("delete", "ld", NAME, "--ignore-not-found")
    trial.wait_gone(NAME)


def claim(trial: Trial, name: str = f"{NAME}-0") -> dict[str, Any]:
    """uid, device and the pods that hold it."""
    found = trial.get("resourceclaim", name)
    allocation = found.get("status", {}).get("allocation", {})
    results = allocation.get("devices", {}).get("results", [])
    return {
        "uid": found["metadata"]["uid"],
        "devices": [f"{one['pool']}/{one['device']}" for one in results],
        "held": {one["name"] for one in found.get("status", {}).get("reservedFor", [])},
    }


def phase(trial: Trial) -> str:
    return str(trial.get("pod", "competitor")["status"]["phase"])


def edit(trial: Trial, length: int) -> None:
    trial.patch("ld", NAME, {"spec": {"engine": {"contextLength": length}}})


def test_a_handover_on_one_device_keeps_device_and_claim_and_a_competitor_waits(serve: Callable[..., Trial]) -> None:
    trial = serve()
    before = claim(trial)
    node = trial.slot_pods(NAME)[0]["spec"]["nodeName"]
    old = trial.engine(NAME)
    assert before["held"] == {f"{NAME}-0", old}
    assert before["devices"] == [f"{node}/device-00"]
    trial.apply(*competitor(node))
    edit(trial, 2048)
    both = trial.wait_for("old and new engine hold the claim", lambda: len(claim(trial)["held"]) == 3 or None)
    assert both
    trial.wait_condition(NAME, "UpdateInProgress", "False")
    trial.wait_for("the old engine is gone", lambda: old not in claim(trial)["held"])
    after = claim(trial)
    assert (after["uid"], after["devices"]) == (before["uid"], before["devices"])
    assert phase(trial) == "Pending"
    new = trial.engine(NAME)
    term = served(trial)[1]
    trial.cluster.kill_container(trial.name, new, "engine")
    trial.cluster.kill_container(trial.name, f"{NAME}-0", "keeper")
    trial.wait_for("it serves again", lambda: served(trial)[0] == new and served(trial)[1] > term)
    assert phase(trial) == "Pending"
    first = slot_pod(trial)
    trial.kubectl("delete", "pod", f"{NAME}-0", "--wait=false")
    trial.wait_for("another slot pod", lambda: running(trial) and slot_pod(trial) not in ("", first))
    assert claim(trial)["uid"] == before["uid"]
    assert phase(trial) == "Pending"
    assert trial.wait_condition(NAME, "GPUAllocated")["reason"] == "Allocated"
    trial.kubectl("delete", "ld", NAME, "--wait=false")
    trial.wait_for("the competitor runs, long before any grace period is over", lambda: phase(trial) == "Running")


def test_a_swap_keeps_device_and_claim_and_a_competitor_waits(serve: Callable[..., Trial]) -> None:
    trial = serve()
    held = trial.get("lslot", f"{NAME}-0")["status"]
    memory = held["capacity"]["weights"] + held["engines"][0]["planBytes"] * 3 // 2  # no second engine beside the first
    trial.kubectl("delete", "ld", NAME)
    trial.wait_gone(NAME)
    serve(weightCache={"memory": str(memory)})
    before = claim(trial)
    trial.apply(*competitor(trial.slot_pods(NAME)[0]["spec"]["nodeName"]))
    edit(trial, 2048)
    seen: set[tuple[str, ...]] = set()

    def swapped() -> bool:
        engines = trial.get("lslot", f"{NAME}-0").get("status", {}).get("engines", ())
        seen.add(tuple(sorted(each["role"] for each in engines)))
        return updated(trial)

    trial.wait_for("the update is over", swapped)
    trial.engine(NAME)
    assert not any("warm" in roles for roles in seen), f"a handover, no swap: {seen}"
    after = claim(trial)
    assert (after["uid"], after["devices"], phase(trial)) == (before["uid"], before["devices"], "Pending")
    trial.kubectl("delete", "ld", NAME, "--wait=false")
    trial.wait_for("the competitor runs", lambda: phase(trial) == "Running")
    trial.wait_for("who held the weights is gone", lambda: not trial.items("lslot") and not trial.slot_pods(NAME))


def updated(trial: Trial) -> bool:
    found = trial.get("ld", NAME)
    told = next(one for one in found["status"]["conditions"] if one["type"] == "UpdateInProgress")
    return bool(told["status"] == "False" and told["observedGeneration"] == found["metadata"]["generation"])


def served(trial: Trial) -> tuple[str, int]:
    """The engine pod that serves, "" when none does, and its term."""
    status = trial.get("lslot", f"{NAME}-0").get("status", {})
    serving = any(one["type"] == "Serving" and one["status"] == "True" for one in status.get("conditions", ()))
    active = status.get("active", {})
    return active.get("pod", "") if serving else "", active.get("term", 0)


def slot_pod(trial: Trial) -> str:
    """The uid of the slot pod that is there to stay, "" when there is none."""
    staying = (one["metadata"] for one in trial.slot_pods(NAME) if "deletionTimestamp" not in one["metadata"])
    return next((str(one["uid"]) for one in staying), "")


def running(trial: Trial) -> bool:
    return [one["status"]["phase"] for one in trial.slot_pods(NAME)] == ["Running"]


def test_without_a_device_the_condition_says_so_and_with_one_it_serves(serve: Callable[..., Trial]) -> None:
    trial = serve()
    trial.kubectl("scale", f"ld/{NAME}", "--replicas=3")
    told = trial.wait_for("no capacity", lambda: without_gpu(trial))
    assert told["reason"] == "InsufficientCapacity"
    assert "allocate all claims" in told["message"]
    trial.wait_condition(NAME, "Ready")
    trial.kubectl("scale", f"ld/{NAME}", "--replicas=2")
    trial.wait_condition(NAME, "GPUAllocated")
    # a kubelet tries a claim again after a minute
    trial.wait_for("two serve", lambda: trial.get("ld", NAME)["status"].get("readyReplicas") == 2)
    nodes = trial.wait_for("two slot pods, both on nodes", lambda: nodes_of_two(trial))
    assert len(set(nodes)) == 2


def nodes_of_two(trial: Trial) -> list[str] | None:
    nodes = [pod["spec"].get("nodeName", "") for pod in trial.slot_pods(NAME)]
    return nodes if len(nodes) == 2 and all(nodes) else None


def without_gpu(trial: Trial) -> dict[str, Any] | None:
    found = trial.cluster.condition("ld", NAME, trial.name, "GPUAllocated")
    return found if found and found["status"] == "False" and found["reason"] != "ClaimPending" else None


def test_a_class_that_does_not_exist_is_named(trial: Trial, model: str) -> None:
    trial.apply(deployment(NAME, model, image=STANDIN, gpu={**CLAIM, "deviceClass": "nobody.example.com"}))
    told = trial.wait_for("no class", lambda: without_gpu(trial))
    assert told["reason"] == "NoDeviceClass"
    assert "nobody.example.com" in told["message"]


def test_where_the_engine_owns_the_device_an_edit_stops_the_old_one_first(serve: Callable[..., Trial]) -> None:
    trial = serve(gpu={**PLUGIN, "count": 2})
    old = trial.engine(NAME)
    edit(trial, 2048)
    trial.wait_for("the old goes", lambda: old not in {p["metadata"]["name"] for p in trial.engine_pods(NAME)})
    trial.wait_condition(NAME, "UpdateInProgress", "False")
    trial.wait_condition(NAME, "Ready")
    new = trial.get("pod", trial.engine(NAME))
    assert new["spec"]["containers"][0]["resources"]["limits"]["example.com/resource"] == "2"
    assert [slot["metadata"]["name"] for slot in trial.items("lslot")] == [f"{NAME}-0"]
