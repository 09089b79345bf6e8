"""From the API server's objects and the kubelet's device list to callers and slots."""

import datetime
from typing import Any

import pytest

from ling_api.errors import BadInput
from ling_nodeagent import cluster
from ling_nodeagent.cluster import Devices, Pod, SlotObject
from ling_nodeagent.directory import Wish
from ling_nodeagent.static import Directory

OWNER = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "name": "chat-0", "uid": "s0", "controller": True}
SPEC = {
    "deployment": "chat", "revision": "1a2b3c4d", "revisions": ["1a2b3c4d"], "capacity": 1024,
    "graceSeconds": 120, "holdSeconds": 60,
}  # fmt: skip


def pod_body(name: str = "chat-0", uid: str = "u0", component: str = "slot", **meta: Any) -> dict[str, Any]:
    labels = {"ling.dev/component": component, "ling.dev/revision": "1a2b3c4d"}
    return {
        "metadata": {
            "namespace": "prod",
            "name": name,
            "uid": uid,
            "labels": labels,
            "ownerReferences": [OWNER],
            **meta,
        }
    }


def pod(name: str = "chat-0", uid: str = "u0", component: str = "slot") -> Pod:
    found = cluster.pod_of(pod_body(name, uid, component))
    assert found is not None
    return found


def going(name: str, uid: str, component: str) -> Pod:
    found = cluster.pod_of(pod_body(name, uid, component, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert found is not None
    return found


def slot(uid: str = "s0", **meta: Any) -> SlotObject:
    return cluster.slot_of(
        {"metadata": {"namespace": "prod", "name": "chat-0", "uid": uid, "generation": 7, **meta}, "spec": SPEC}
    )


ENGINE = pod("chat-0-1a2b3c4d-0", "u1", "engine")


def test_a_pod_that_a_slot_controls() -> None:
    assert pod() == Pod(
        namespace="prod", name="chat-0", uid="u0", slot="prod/chat-0", slot_uid="s0", component="slot", revision=""
    )
    assert (ENGINE.component, ENGINE.revision) == ("engine", "1a2b3c4d")


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"ownerReferences": None}, id="no-owner"),
        pytest.param({"ownerReferences": [{**OWNER, "controller": False}]}, id="owner-is-no-controller"),
        pytest.param({"ownerReferences": [{**OWNER, "kind": "LingDeployment"}]}, id="another-kind"),
        pytest.param({"ownerReferences": [{**OWNER, "apiVersion": "evil.dev/v1alpha1"}]}, id="another-group"),
        pytest.param({"labels": None}, id="no-component"),
        pytest.param({"labels": {"ling.dev/component": "operator"}}, id="another-component"),
    ],
)
def test_any_other_pod_is_nobody(meta: dict[str, Any]) -> None:
    assert cluster.pod_of(pod_body(**meta)) is None


def test_a_slot_object() -> None:
    spec = slot().spec
    assert (spec.name, spec.capacity, spec.generation, spec.leaving) == ("prod/chat-0", 1024, 7, False)
    assert slot(deletionTimestamp="2026-01-01T00:00:00Z").spec.leaving
    wished = {
        "metadata": {"namespace": "prod", "name": "x", "uid": "s"},
        "spec": {**SPEC, "wish": {"pod": "p", "term": 4}},
    }
    assert cluster.slot_of(wished).spec.wish == Wish(pod="p", term=4)


def test_a_slot_that_makes_no_sense_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="capacity"):
        cluster.slot_of(
            {"metadata": {"namespace": "prod", "name": "x", "uid": "s"}, "spec": {**SPEC, "capacity": "1Gi"}}
        )


def test_device_and_pod_meet_in_either_order() -> None:
    early = cluster.listed(Devices(), {"d000": ("prod", "chat-0")}, [])
    assert early == Devices(given={"d000": ("prod", "chat-0")})
    assert cluster.bind(early, [pod()]) == Devices(bound={"d000": "u0"})
    assert cluster.listed(Devices(), {"d000": ("prod", "chat-0")}, [pod()]) == Devices(bound={"d000": "u0"})


def test_a_pod_that_ended_keeps_its_device_until_its_object_is_gone() -> None:
    bound = Devices(bound={"d000": "u0"})
    assert cluster.listed(bound, {}, [pod()]) == bound
    assert cluster.bind(bound, []) == Devices()


def test_a_new_pod_of_the_same_name_does_not_inherit_the_device() -> None:
    bound = Devices(bound={"d000": "u0"})
    assert cluster.bind(bound, [pod(uid="u9")]) == Devices()
    assert cluster.listed(Devices(), {"d001": ("prod", "chat-0")}, [pod(uid="u9")]) == Devices(bound={"d001": "u9"})


def test_a_device_given_away_again_is_the_new_pods() -> None:
    bound = Devices(bound={"d000": "u0", "d001": "u1"})
    assert cluster.allocated(bound, "d000") == Devices(bound={"d001": "u1"})
    moved = cluster.listed(bound, {"d000": ("prod", ENGINE.name)}, [pod(), ENGINE])
    assert moved.bound["d000"] == "u1"


def test_callers_and_the_slots_that_have_a_pod_here() -> None:
    found = cluster.directory(
        Devices(bound={"d003": "u1"}), [pod(), ENGINE], {"prod/chat-0": slot(), "prod/far-0": slot()}
    )
    assert list(found.slots) == ["prod/chat-0"]
    caller = found.callers["d003"]
    assert (caller.pod, caller.slot, caller.component, caller.revision) == (
        ENGINE.name,
        "prod/chat-0",
        "engine",
        "1a2b3c4d",
    )
    assert list(found.callers) == ["d003"]


def test_a_pod_outlives_its_slot_object_but_not_into_the_next_one() -> None:
    devices = Devices(bound={"d000": "u0"})
    assert list(cluster.directory(devices, [pod()], {}).callers) == ["d000"]
    assert cluster.directory(devices, [pod()], {"prod/chat-0": slot(uid="s9")}) == Directory()


def test_what_is_remembered_counts_as_far_as_the_kubelet_agrees() -> None:
    devices = Devices(bound={"d000": "u0", "d001": "u1"})
    remembered = cluster.directory(devices, [pod(), ENGINE], {"prod/chat-0": slot()})
    found = cluster.recalled(remembered, {"d000": ("prod", "chat-0"), "d001": ("prod", "somebody")})
    assert list(found.callers) == ["d000"]
    assert found.slots == remembered.slots


@pytest.mark.parametrize(
    ("pods", "stays"),
    [
        ([pod(), ENGINE], True),
        ([going("chat-0", "u0", "slot"), ENGINE], False),
        ([pod(), going(ENGINE.name, "u1", "engine")], True),
        ([ENGINE], False),
    ],
    ids=["there", "being deleted", "an engine is", "gone"],
)
def test_whether_the_slot_pod_stays(pods: list[Pod], stays: bool) -> None:
    found = cluster.directory(Devices(), pods, {"prod/chat-0": slot()})
    assert found.slots["prod/chat-0"].pod_stays is stays


def test_a_node_that_is_left_dates_its_slots() -> None:
    keys = frozenset({cluster.UNSCHEDULABLE, "karpenter.sh/disrupted"})
    stays = cluster.node_of({"spec": {"taints": [{"key": "gpu", "timeAdded": "2026-11-29T20:00:00Z"}]}}, keys)
    assert not stays.leaving
    bare = cluster.node_of({"spec": {"unschedulable": True}}, keys)
    assert (bare.leaving, bare.since) == (True, None)
    taints = [
        {"key": cluster.UNSCHEDULABLE, "timeAdded": "2026-11-29T20:00:10Z"},
        {"key": "karpenter.sh/disrupted", "timeAdded": "2026-11-29T20:00:00Z"},
    ]
    left = cluster.node_of({"spec": {"unschedulable": True, "taints": taints}}, keys)
    assert left.since == datetime.datetime(2026, 11, 29, 20, tzinfo=datetime.UTC).timestamp()


def test_the_deadline_counts_from_the_taint() -> None:
    bound = Devices(bound={"d000": "u0"})
    slots = {"prod/chat-0": slot()}
    assert cluster.directory(bound, [pod()], slots).slots["prod/chat-0"].leaves_by is None
    assert cluster.directory(bound, [pod()], slots, 1000.0).slots["prod/chat-0"].leaves_by == 1600.0


@pytest.mark.parametrize(("mode", "warm"), [("Warm", 2), ("Gated", 0)])
def test_only_warm_standbys_are_the_agents_to_let_go(mode: str, warm: int) -> None:
    body = {"metadata": {"namespace": "prod", "name": "x", "uid": "s"}}
    body["spec"] = {**SPEC, "standby": {"replicas": 2, "mode": mode}, "leaving": True, "lameDuckSeconds": 7}
    spec = cluster.slot_of(body).spec
    assert (spec.standbys, spec.retiring, spec.lame_duck_seconds) == (warm, True, 7)
