"""More than one node is left at a time: who serves meanwhile."""

from __future__ import annotations

import pytest
from tests.support.operator_world import World, as_wanted, started


def fewest_serving(world: World, looks: int = 120) -> int:
    """Works that long; how many slots served at the worst moment."""
    fewest = len(world.kube.serving())
    for _ in range(looks):
        world.look()
        world.kube.tick()
        fewest = min(fewest, len(world.kube.serving()))
    return fewest


@pytest.mark.parametrize("left", [["node-1"], ["node-1", "node-2"]], ids=["one", "both at once"])
def test_nodes_that_are_left_at_once_never_have_fewer_serve_than_are_wanted(left: list[str]) -> None:
    world = started(nodes=4, replicas=2)
    assert {slot["status"]["node"] for slot in world.kube.of_kind("LingSlot")} == {"node-1", "node-2"}
    for node in left:
        world.kube.machines[node].cordoned = world.kube.now
    assert fewest_serving(world) == 2
    as_wanted(world, 2)
    assert not {slot["status"]["node"] for slot in world.kube.of_kind("LingSlot")} & set(left)


def test_with_nowhere_to_go_both_stay_and_serve() -> None:
    world = started(nodes=3, replicas=2)
    world.kube.machines["node-3"].ready = False
    for node in ("node-1", "node-2"):
        world.kube.machines[node].cordoned = world.kube.now
    assert fewest_serving(world) == 2
