"""What the operator makes of news that is old, or of an edit that fits nowhere: in memory, without a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.operator_world import World, as_wanted, started

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
