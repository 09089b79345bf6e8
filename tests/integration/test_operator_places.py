"""Drain, death, standby, spare slots, pause, Recreate: stories of the operator against an API server in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_kube import Died
from tests.support.operator_world import World, as_wanted, spec, started

if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM = {"allocation": "ResourceClaim", "deviceClass": "gpu.example.com"}


def slots(world: World) -> list[str]:
    return sorted(one["metadata"]["name"] for one in world.kube.of_kind("LingSlot"))


def leave(world: World, node: str) -> None:
    world.kube.machines[node].cordoned = world.kube.now


def served_through(world: World, rounds: int = 60) -> None:
    """Work, somebody serving at any time."""
    for _ in range(rounds):
        world.look()
        world.kube.tick()
        assert world.kube.serving(), world.status()


def test_a_drained_node_s_slot_goes_when_one_elsewhere_serves() -> None:
    world = started(nodes=2)
    leave(world, "node-1")
    served_through(world)
    as_wanted(world, 1)
    assert slots(world) == ["tiny-1"]
    assert world.kube.objects["Pod", "tiny-1"]["spec"]["nodeName"] == "node-2"


def test_uncordon_before_the_switch_takes_the_replacement_back() -> None:
    world = started(nodes=2)
    before = world.pods()
    leave(world, "node-1")
    for _ in range(2):
        world.look()
        world.kube.tick()
    assert slots(world) == ["tiny-0", "tiny-1"]
    world.kube.machines["node-1"].cordoned = 0.0
    served_through(world)
    as_wanted(world, 1)
    assert world.pods() == before


def test_on_the_only_node_a_slot_stays_until_the_time_is_over_and_comes_back() -> None:
    world = started(drain={"replacementTimeoutSeconds": 40})
    leave(world, "node-1")
    served_through(world, 40)  # 20 s
    world.kube.now += 20
    served_through(world)  # the time is over, and nobody evicts it: a cordon alone takes nothing away
    assert slots(world) == ["tiny-0", "tiny-1"]
    for name in world.pods():
        if name.startswith("tiny-0"):
            world.kube.remove("Pod", name)  # now somebody drains
    world.settle()
    assert world.kube.serving() == []
    assert slots(world) == ["tiny-1"]
    assert world.condition("Ready") == ("False", "NotServing")
    assert "no node takes it" in world.status()["message"]
    world.kube.machines["node-1"].cordoned = 0.0
    world.settle()
    as_wanted(world, 1)


def test_an_agent_away_after_the_deadline_takes_no_slot_that_serves() -> None:
    """The agent of a cordoned node holds pods back that serve; then it is away itself, for an upgrade that hangs."""
    world = started(drain={"replacementTimeoutSeconds": 40})
    leave(world, "node-1")
    served_through(world, 40)  # 20 s
    world.kube.now += 20
    for pod in world.kube.of_kind("Pod"):
        if pod["metadata"]["name"].startswith("tiny-0-"):
            held_back = {"type": "Ready", "status": "False", "lastTransitionTime": world.kube.time()}
            pod["status"]["conditions"] = [held_back]
    served_through(world, 10)
    world.kube.agent_ready = False
    served_through(world, 400)  # 200 s, thrice holdSeconds
    assert "tiny-0" in slots(world)
    assert not world.kube.objects["LingSlot", "tiny-0"]["spec"].get("leaving")


def test_a_dead_node_s_slot_is_replaced_at_once_and_the_surplus_goes_when_it_returns() -> None:
    world = started(nodes=2)
    world.kube.machines["node-1"].ready = False
    for _ in range(12):
        world.look()
        world.kube.tick()
    assert world.kube.serving() == ["tiny-1"]
    assert world.condition("Ready") == ("True", "Serving")
    world.kube.machines["node-1"].ready = True
    world.settle()
    as_wanted(world, 1)
    assert slots(world) == ["tiny-1"]


def test_a_node_that_returns_before_the_replacement_serves_keeps_its_slot() -> None:
    world = started(nodes=2)
    world.kube.machines["node-1"].ready = False
    world.look()
    world.kube.tick()
    world.look()
    world.kube.machines["node-1"].ready = True
    world.settle()
    as_wanted(world, 1)
    assert slots(world) == ["tiny-0"]


def test_a_spare_slot_serves_first_and_another_is_filled() -> None:
    world = started(nodes=3, weightCache={"memory": "1Gi", "spareSlots": 1})
    as_wanted(world, 1, spares=1)
    assert world.status()["spareSlots"] == 1
    fill = world.kube.objects["Pod", f"tiny-1-{world.status()['updateRevision']}-fill"]
    assert fill["status"]["phase"] == "Succeeded"
    leave(world, "node-1")
    served_through(world)
    as_wanted(world, 1, spares=1)
    assert world.kube.serving() == ["tiny-1"], "the one that had the weights"


def test_a_spare_slot_is_filled_for_the_revision_that_is_wanted_now() -> None:
    world = started(nodes=2, weightCache={"memory": "1Gi", "spareSlots": 1})
    world.kube.put_deployment("tiny", spec(context=8192, weightCache={"memory": "1Gi", "spareSlots": 1}))
    served_through(world)
    as_wanted(world, 1, spares=1)
    assert f"tiny-1-{world.status()['updateRevision']}-fill" in world.pods()


def test_standby_engines_are_kept_and_restored() -> None:
    world = started(standby={"replicas": 2, "mode": "Gated"})
    as_wanted(world, 1)
    assert world.condition("StandbyReady") == ("True", "Gated")
    active = world.kube.objects["LingSlot", "tiny-0"]["status"]["active"]["pod"]
    world.kube.remove("Pod", active)
    world.kube.tick()
    world.look()
    assert world.condition("StandbyReady") == ("False", "NotGated")
    world.settle()
    as_wanted(world, 1)
    assert world.condition("StandbyReady") == ("True", "Gated")


def test_an_edit_keeps_the_old_standby_until_the_new_engine_is_checked() -> None:
    world = started(standby={"replicas": 1, "mode": "Gated"})
    world.kube.put_deployment("tiny", spec(image="missing:1", standby={"replicas": 1, "mode": "Gated"}))
    for _ in range(10):
        world.look()
        world.kube.tick()
    assert sum("engine:1" in one["spec"]["containers"][0]["image"] for one in world.kube.of_kind("Pod")) == 2
    world.kube.put_deployment("tiny", spec(context=9000, standby={"replicas": 1, "mode": "Gated"}))
    served_through(world)
    as_wanted(world, 1)


def test_a_warm_standby_that_is_only_gated_is_not_ready() -> None:
    world = started(standby={"replicas": 1, "mode": "Warm"})
    assert world.condition("StandbyReady") == ("False", "NotWarm")


def test_a_paused_rollout_changes_no_slot_and_goes_on_later() -> None:
    world = started()
    before, paused = world.pods(), {"progressDeadlineSeconds": 20, "paused": True}
    world.kube.put_deployment("tiny", spec(context=8192, rollout=paused))
    world.settle()
    world.kube.now += 60
    world.settle()
    assert world.pods() == before
    assert world.condition("Progressing") == ("False", "Paused")
    world.kube.put_deployment("tiny", spec(context=8192, replicas=2, rollout=paused))
    world.settle()
    assert world.engine_revisions() == {world.status()["currentRevision"]}
    assert len(world.kube.serving()) == 2
    world.kube.put_deployment("tiny", spec(context=8192, replicas=2))
    served_through(world)
    as_wanted(world, 2)


def test_recreate_makes_the_new_slot_first() -> None:
    world = started(nodes=2, gpu=CLAIM)
    rollout = {"strategy": "Recreate", "progressDeadlineSeconds": 60}
    world.kube.put_deployment("tiny", spec(context=8192, gpu=CLAIM, rollout=rollout))
    served_through(world)
    as_wanted(world, 1)
    assert slots(world) == ["tiny-1"]


def test_recreate_without_room_releases_the_old_slot_first_and_says_so() -> None:
    world = started(gpu=CLAIM)
    rollout = {"strategy": "Recreate", "progressDeadlineSeconds": 60}
    world.kube.put_deployment("tiny", spec(context=8192, gpu=CLAIM, rollout=rollout))
    served_through(world, 18)  # 9 s
    assert world.condition("GPUAllocated") == ("False", "InsufficientCapacity")
    told = set()
    for _ in range(60):
        world.look()
        world.kube.tick()
        told.add(next(one["message"] for one in world.status()["conditions"] if one["type"] == "Progressing"))
    assert any("no room for a new slot beside the old: tiny-0 is released first" in text for text in told)
    as_wanted(world, 1)


def told(world: World, kind: str) -> str:
    return next(one["message"] for one in world.status()["conditions"] if one["type"] == kind)


def test_a_slot_that_a_dead_node_keeps_is_not_waited_for() -> None:
    world = started(nodes=2, gpu=CLAIM)
    world.kube.machines["node-1"].ready = False
    for _ in range(80):
        world.look()
        world.kube.tick()
    assert slots(world) == ["tiny-0", "tiny-1"], "deleted, and nobody on its node ends it"
    rollout = {"strategy": "Recreate", "progressDeadlineSeconds": 60}
    world.kube.put_deployment("tiny", spec(context=8192, gpu=CLAIM, rollout=rollout))
    for _ in range(120):
        world.look()
        world.kube.tick()
    assert world.condition("Progressing") == ("True", "Complete")
    assert slots(world) == ["tiny-0", "tiny-2"]


@pytest.mark.parametrize("late", [pytest.param(False, id="at once"), pytest.param(True, id="by the watches")])
@pytest.mark.parametrize(
    ("devices", "taken", "reason", "words"),
    [
        pytest.param(
            1, False, "NoNodeLargeEnough", "no node has 2 devices of device class gpu.example.com", id="small"
        ),
        pytest.param(0, False, "NoDevices", "is the driver running", id="no driver"),
        pytest.param(2, True, "InsufficientCapacity", "cannot allocate all claims", id="others have them"),
    ],
)
def test_too_few_devices_are_told_from_devices_that_others_have(
    devices: int, taken: bool, reason: str, words: str, late: bool
) -> None:
    world = World(2, late=late)
    for machine in world.kube.machines.values():
        machine.devices = devices
    if taken:
        world.kube.taken_by_others = dict.fromkeys(world.kube.machines, devices)
    if late:
        asyncio.run(world.mirror.sync())
    world.kube.put_deployment("tiny", spec(gpu={**CLAIM, "count": 2}))
    world.settle()
    world.look()
    assert world.condition("GPUAllocated") == ("False", reason)
    assert words in told(world, "GPUAllocated")
    for machine in world.kube.machines.values():
        machine.devices = 2
    world.kube.taken_by_others = {}
    world.settle()
    as_wanted(world, 1)
    assert world.condition("GPUAllocated") == ("True", "Allocated")


def test_a_slot_is_not_released_for_more_devices_than_any_node_has() -> None:
    world = started(gpu=CLAIM)
    world.kube.put_deployment("tiny", spec(gpu={**CLAIM, "count": 2}))
    served_through(world, 30)  # 15 s: longer than room is waited for
    assert world.condition("GPUAllocated") == ("False", "NoNodeLargeEnough")
    served_through(world, 30)
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    world.kube.put_deployment("tiny", spec(gpu=CLAIM))
    served_through(world)
    as_wanted(world, 1)


def test_an_image_that_nobody_can_pull_releases_no_slot() -> None:
    world = started(gpu=CLAIM)
    world.kube.put_deployment("tiny", spec(image="missing:1", gpu=CLAIM, rollout={"strategy": "Recreate"}))
    told = set()
    for _ in range(60):  # 30 s
        world.look()
        world.kube.tick()
        assert world.kube.serving() == ["tiny-0"]
        told.add(next(one["message"] for one in world.status()["conditions"] if one["type"] == "Progressing"))
    assert any("has passed its check" in text for text in told), told
    world.kube.put_deployment("tiny", spec(gpu=CLAIM))
    world.settle()
    as_wanted(world, 1)


def test_a_slot_whose_engine_finds_no_room_is_replaced_elsewhere() -> None:
    world = World(2)
    world.kube.machines["node-1"].engines = 0
    world.kube.put_deployment("tiny", spec())
    world.kube.machines["node-2"].ready = False
    for _ in range(8):
        world.look()
        world.kube.tick()
    assert world.kube.objects["Pod", "tiny-0"]["spec"]["nodeName"] == "node-1"
    world.kube.machines["node-2"].ready = True
    world.kube.now += 31
    leave(world, "node-1")
    world.settle()
    as_wanted(world, 1)
    assert world.kube.objects["Pod", "tiny-1"]["spec"]["nodeName"] == "node-2"


ANYWHERE = {"engine": {"contextLength": 4096, "podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}}}


@pytest.mark.parametrize("gpu", [{}, {"gpu": {"allocation": "DevicePlugin"}}], ids=["slot pod", "engine pod first"])
@pytest.mark.parametrize("ill", ["cordoned", "dead"])
def test_a_slot_whose_pods_tolerate_everything_is_not_replaced_on_the_same_node_again_and_again(
    ill: str, gpu: dict[str, Any]
) -> None:
    drain = {"drain": {"replacementTimeoutSeconds": 40}}
    world = started(**ANYWHERE, **gpu, **drain)
    machine = world.kube.machines["node-1"]
    if ill == "cordoned":
        leave(world, "node-1")
    machine.ready = ill != "dead"
    for _ in range(120):
        world.look()
        world.kube.tick()
        world.kube.now += 0.5
    made = sum(kind == "LingSlot" for kind, _ in world.kube.created)
    assert made == 2, "the first and one replacement, which waits for another node"
    machine.ready, machine.cordoned = True, 0.0
    world.settle()
    assert len(world.kube.serving()) == 1
    assert len(slots(world)) == 1
    assert sum(kind == "LingSlot" for kind, _ in world.kube.created) == 2


def test_an_agent_that_recovers_is_given_time() -> None:
    world = started()
    slot = world.kube.objects["LingSlot", "tiny-0"]
    world.kube.agents[slot["metadata"]["uid"]].recovering = True
    world.kube.put_deployment("tiny", spec(context=8192))
    for _ in range(8):
        world.look()
        world.kube.tick()
    assert "wish" not in world.kube.objects["LingSlot", "tiny-0"]["spec"]
    world.kube.agents[slot["metadata"]["uid"]].recovering = False
    served_through(world)
    as_wanted(world, 1)


def test_going_back_by_the_revision_s_own_data_is_the_same_revision() -> None:
    world = started()
    old = world.status()["updateRevision"]
    data = world.kube.objects["ControllerRevision", f"tiny-{old}"]["data"]
    world.kube.put_deployment("tiny", spec(context=8192))
    for _ in range(3):
        world.look()
        world.kube.tick()
    engine = world.kube.objects["LingSlot", "tiny-0"]["status"]["active"]
    cache = {**spec()["weightCache"], **data.get("weightCache", {})}
    world.kube.put_deployment("tiny", {**spec(), **data, "weightCache": cache})
    served_through(world)
    as_wanted(world, 1)
    assert world.status()["updateRevision"] == old
    assert world.kube.objects["LingSlot", "tiny-0"]["status"]["active"] == engine


def edit(**more: Any) -> Callable[[World], None]:
    return lambda world: world.kube.put_deployment("tiny", spec(**more))


def cordon(world: World) -> None:
    leave(world, "node-1")


def power_off(world: World) -> None:
    world.kube.machines["node-1"].ready = False


def power_on(world: World) -> None:
    world.kube.machines["node-1"].ready = True


def crash(world: World) -> None:
    world.kube.remove("Pod", world.kube.objects["LingSlot", "tiny-0"]["status"]["active"]["pod"])


def tight(world: World) -> None:
    world.kube.tight = True


def later(seconds: float) -> Callable[[World], None]:
    def pass_by(world: World) -> None:
        world.kube.now += seconds

    return pass_by


STANDBY = {"replicas": 1, "mode": "Gated"}
SPARE = {"memory": "1Gi", "spareSlots": 1}
RECREATE = {"strategy": "Recreate", "progressDeadlineSeconds": 60}
ROWS: dict[str, tuple[list[Callable[[World], None]], dict[str, int]]] = {
    "first start": ([edit(gpu=CLAIM)], {"replicas": 1}),
    "upgrade": ([edit(standby=STANDBY), edit(standby=STANDBY, context=8192)], {"replicas": 1}),
    "recreate": ([edit(gpu=CLAIM), edit(gpu=CLAIM, context=8192, rollout=RECREATE)], {"replicas": 1}),
    "swap": ([tight, edit(), edit(context=8192)], {"replicas": 1}),
    "swap that hangs": ([tight, edit(), edit(image="hanging:1"), later(30), edit(), later(6)], {"replicas": 1}),
    "swap taken back": ([tight, edit(), edit(image="hanging:1"), edit(), later(6)], {"replicas": 1}),
    "failover": ([edit(standby=STANDBY), crash], {"replicas": 1}),
    "drain": ([edit(weightCache=SPARE), cordon], {"replicas": 1, "spares": 1}),
    "node death": ([edit(gpu=CLAIM), power_off, power_on], {"replicas": 1}),
    "scale": ([edit(replicas=2), edit(replicas=1)], {"replicas": 1}),
}


def play(row: list[Callable[[World], None]], die_at: int) -> World:
    """The row's happenings one after another; the operator dies after its k-th write and is started again."""
    world = World(3)
    world.kube.die_after = die_at
    for happens in row:
        happens(world)
        try:
            world.settle()
        except Died:
            world.restart()
            world.settle()
    return world


@pytest.mark.parametrize("name", list(ROWS))
def test_death_after_any_write_of_any_row_ends_in_the_same_state(name: str) -> None:
    row, wanted = ROWS[name]
    calm = play(row, 0)
    as_wanted(calm, **wanted)
    made = sorted(one for kind, one in calm.kube.created if kind != "Event")
    for k in range(1, calm.kube.writes + 1):
        world = play(row, k)
        as_wanted(world, **wanted)
        assert sorted(one for kind, one in world.kube.created if kind != "Event") == made, f"k={k}"
