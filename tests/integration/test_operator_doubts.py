"""What the operator makes of news that is old, or of an edit that fits nowhere: in memory, without a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.operator_world import World, as_wanted, spec, started

if TYPE_CHECKING:
    from collections.abc import Callable


def serving_label(world: World, name: str) -> bool:
    return "ling.dev/serving" in world.kube.objects["Pod", name]["metadata"]["labels"]


def work(world: World, rounds: int) -> None:
    for _ in range(rounds):
        world.look()
        world.kube.tick()


def engine_of(world: World, slot: str) -> str:
    return str(world.kube.objects["LingSlot", slot]["status"]["active"]["pod"])


def unready(world: World, slot: str) -> None:
    """The server ends, and the kubelet sees its launcher not Ready."""
    changed = {"type": "Ready", "status": "False", "lastTransitionTime": world.kube.time()}
    world.kube.objects["Pod", engine_of(world, slot)]["status"]["conditions"] = [changed]


def deleted(world: World, slot: str) -> None:
    world.kube.remove("Pod", engine_of(world, slot))


def test_without_agent_an_engine_that_lives_serves_on() -> None:
    world = started(replicas=2)
    before = world.pods()
    world.kube.agent_ready = False
    world.settle()
    world.kube.now += 600
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert world.status()["serving"] == "2/2"
    assert world.pods() == before
    assert all(serving_label(world, name) for name in ("tiny-0", "tiny-1"))


@pytest.mark.parametrize("ends", [unready, deleted])
def test_without_agent_an_engine_that_is_dead_serves_nobody(ends: Callable[[World, str], None]) -> None:
    world = started()
    world.kube.agent_ready = False
    world.settle()
    ends(world, "tiny-0")
    work(world, 4)
    assert world.condition("Ready") == ("False", "NotServing")
    assert world.status()["serving"] == "0/1"
    world.kube.now += 60
    world.settle()
    assert serving_label(world, "tiny-0"), "nobody else serves: clients wait where an engine will come first"
    world.kube.agent_ready = True
    world.settle()
    as_wanted(world, 1)


@pytest.mark.parametrize("ends", [unready, deleted])
def test_without_agent_a_dead_slot_leaves_the_service_after_holding(ends: Callable[[World, str], None]) -> None:
    world = started(replicas=2)
    world.kube.agent_ready = False
    work(world, 2)
    ends(world, "tiny-0")
    work(world, 6)  # 3 s of the 5 s that it holds
    assert serving_label(world, "tiny-0"), "clients still wait there"
    assert world.status()["serving"] == "1/2"
    work(world, 8)
    assert not serving_label(world, "tiny-0")
    assert serving_label(world, "tiny-1")
    assert world.condition("Ready") == ("True", "Serving")
    world.kube.agent_ready = True
    world.settle()
    as_wanted(world, 2)


CLAIM = {"allocation": "ResourceClaim", "deviceClass": "gpu.example.com"}
ENGINE = {"contextLength": 4096}
RECREATE = {"strategy": "Recreate", "progressDeadlineSeconds": 20}
PATIENT = {"progressDeadlineSeconds": 100}


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        pytest.param(
            {"gpu": {**CLAIM, "deviceClass": "gpu.exmaple.com"}}, "gpu.exmaple.com does not exist", id="device class"
        ),
        pytest.param(
            {"engine": {**ENGINE, "podTemplate": {"spec": {"nodeSelector": {"pool": "gqu"}}}}},
            "node affinity/selector",
            id="node selector",
        ),
        pytest.param({"memory": "800Gi"}, "Insufficient memory", id="memory"),
        pytest.param(
            {
                "engine": {**ENGINE, "podTemplate": {"spec": {"nodeSelector": {"pool": "gqu"}}}},
                "rollout": RECREATE,
            },
            "node affinity/selector",
            id="node selector and Recreate",
        ),
    ],
)
def test_a_shape_that_no_node_can_take_releases_no_slot_that_serves(edit: dict[str, Any], why: str) -> None:
    before = {"gpu": CLAIM} if "gpu" in edit else {}
    world = started(nodes=2, **before)
    pods = world.pods()
    world.kube.put_deployment("tiny", spec(**{**before, **edit}))
    for _ in range(200):  # 100 s: long after the 10 s of waiting and the 20 s of the deadline
        world.look()
        world.kube.tick()
        assert world.kube.serving() == ["tiny-0"]
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert why in world.status()["message"]
    assert world.condition("Ready") == ("True", "Serving")
    world.kube.put_deployment("tiny", spec(**before))
    world.settle()
    as_wanted(world, 1)
    assert world.pods() == pods


def test_for_want_of_room_a_slot_is_still_released_first() -> None:
    world = World()
    world.kube.machines["node-1"].memory = 5 << 30
    world.kube.put_deployment("tiny", spec(memory="3Gi"))
    world.settle()
    world.kube.put_deployment("tiny", spec(memory="4Gi"))
    work(world, 18)  # 9 s
    assert world.kube.serving() == ["tiny-0"]
    world.settle()
    as_wanted(world, 1)
    assert [one["spec"]["capacity"] for one in world.kube.of_kind("LingSlot")] == [4 << 30]


def crowded() -> World:
    """A slot that serves where no second engine finds room, while an edit waits for one; longer than a slot may."""
    world = started(rollout=PATIENT)
    world.kube.machines["node-1"].engines = 1
    world.kube.put_deployment("tiny", spec(context=8192, rollout=PATIENT))
    work(world, 80)  # 40 s
    assert len(world.kube.of_kind("LingSlot")) == 2, "another slot is tried"
    assert world.kube.serving() == ["tiny-0"]
    return world


def test_an_edit_that_fits_nowhere_and_is_taken_back_leaves_what_was() -> None:
    before = started(rollout=PATIENT).pods()
    world = crowded()
    world.kube.put_deployment("tiny", spec(rollout=PATIENT))
    world.settle()
    as_wanted(world, 1)
    assert world.pods() == before
    made = world.kube.created.copy()
    world.kube.now += 120
    work(world, 160)
    assert world.kube.created == made


def test_an_edit_that_fits_nowhere_is_given_up_and_no_more_slots_are_made() -> None:
    before = started(rollout=PATIENT).pods()
    world = crowded()
    work(world, 130)  # 105 s, over the deadline
    made = [name for kind, name in world.kube.created if kind == "LingSlot"]
    for _ in range(300):  # 150 s more
        world.look()
        world.kube.tick()
        assert world.kube.serving() == ["tiny-0"]
    assert [name for kind, name in world.kube.created if kind == "LingSlot"] == made
    assert len(made) <= 5
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.pods() == before
