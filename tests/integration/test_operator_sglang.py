"""A LingDeployment on GPUs: image and command line of its engines, memory of its slots, edits of where it may be."""

from __future__ import annotations

from typing import Any

from tests.support.operator_world import World, as_wanted, spec
from tests.support.operator_world import started as serving

CLAIM = {"allocation": "ResourceClaim", "count": 4}


def on_gpus(**engine: Any) -> dict[str, Any]:
    body = spec(gpu=CLAIM, parallelism={"tp": 4})
    del body["weightCache"]["memory"]
    body["engine"] |= {"runtime": "SGLang", **engine}
    return body


def started(nodes: int = 1, **engine: Any) -> World:
    world = World(nodes)
    world.kube.put_deployment("tiny", on_gpus(**engine))
    world.settle()
    return world


def pod(world: World, component: str) -> dict[str, Any]:
    found = [one for one in world.kube.of_kind("Pod") if one["metadata"]["labels"]["ling.dev/component"] == component]
    assert len(found) == 1
    return found[0]["spec"]


def test_a_slot_on_gpus_takes_no_host_memory_and_its_engine_the_image_of_sglang() -> None:
    world = started()
    as_wanted(world, 1)
    (slot,) = world.kube.of_kind("LingSlot")
    assert slot["spec"]["capacity"] == 0
    assert pod(world, "slot")["containers"][0]["resources"]["limits"]["memory"] == str(64 << 20)
    (engine,) = pod(world, "engine")["containers"]
    assert engine["image"] == "sglang:1"
    assert {"--runtime=sglang", "--tp=4"} < set(engine["args"])


def test_an_edit_of_what_sglang_is_told_rolls_the_engine_and_keeps_the_slot() -> None:
    world = started()
    (before,) = world.kube.of_kind("LingSlot")
    world.kube.put_deployment("tiny", on_gpus(extraArgs=["--schedule-policy=lpm"]))
    world.settle()
    as_wanted(world, 1)
    (after,) = world.kube.of_kind("LingSlot")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "--extra-arg=--schedule-policy=lpm" in pod(world, "engine")["containers"][0]["args"]


def test_an_edit_of_where_slots_may_be_makes_a_new_slot_first() -> None:
    world = started(nodes=2)
    world.kube.put_deployment("tiny", on_gpus(podTemplate={"spec": {"priorityClassName": "serving"}}))
    for _ in range(60):
        world.look()
        world.kube.tick()
        assert world.kube.serving(), world.status()
    as_wanted(world, 1)
    (slot,) = world.kube.of_kind("LingSlot")
    assert slot["metadata"]["name"] == "tiny-1"
    assert pod(world, "slot")["priorityClassName"] == pod(world, "engine")["priorityClassName"] == "serving"


def test_a_change_of_runtime_that_never_serves_is_given_up_and_what_served_goes_on() -> None:
    world = serving(nodes=2)
    (before,) = world.kube.of_kind("LingSlot")
    world.kube.put_deployment("tiny", on_gpus(image="missing:1"))
    for _ in range(120):
        world.look()
        world.kube.tick()
        assert world.kube.serving(), world.status()
    assert world.condition("Progressing")[0] == "False"
    (after,) = world.kube.of_kind("LingSlot")
    assert (after["metadata"]["uid"], after["spec"]["capacity"]) == (before["metadata"]["uid"], 1 << 30)
