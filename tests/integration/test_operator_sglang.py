"""A LingDeployment on GPUs: image and command line of its engines, memory of its slots, edits of where it may be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.operator_world import World, as_wanted, spec
from tests.support.operator_world import started as serving

CLAIM = {"allocation": "ResourceClaim", "count": 4}
PLUGIN = {"allocation": "DevicePlugin", "count": 4}


def on_gpus(gpu: dict[str, Any] = CLAIM, **engine: Any) -> dict[str, Any]:
    body = spec(gpu=gpu, parallelism={"tp": 4})
    del body["weightCache"]["memory"]
    body["engine"] |= {"runtime": "SGLang", **engine}
    return body


def started(nodes: int = 1, gpu: dict[str, Any] = CLAIM) -> World:
    world = World(nodes)
    for machine in world.kube.machines.values():
        machine.devices = 4
    world.kube.put_deployment("tiny", on_gpus(gpu))
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


def test_who_wants_no_cached_weights_is_not_told_that_there_are_none() -> None:
    world = started()
    assert world.condition("WeightsCached") == ("True", "Held")
    body = on_gpus()
    body["weightCache"]["policy"] = "Off"
    world.kube.put_deployment("tiny", body)
    world.settle()
    assert [one for one in world.status()["conditions"] if one["type"] == "WeightsCached"] == []


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
    for machine in world.kube.machines.values():
        machine.devices = 4
    (before,) = world.kube.of_kind("LingSlot")
    world.kube.put_deployment("tiny", on_gpus(image="missing:1"))
    for _ in range(120):
        world.look()
        world.kube.tick()
        assert world.kube.serving(), world.status()
    assert world.condition("Progressing")[0] == "False"
    (after,) = world.kube.of_kind("LingSlot")
    assert (after["metadata"]["uid"], after["spec"]["capacity"]) == (before["metadata"]["uid"], 1 << 30)


def told(world: World, kind: str) -> str:
    return next(one["message"] for one in world.status()["conditions"] if one["type"] == kind)


@pytest.mark.parametrize(
    ("edit", "reason", "why"),
    [
        pytest.param({"image": "missing:1"}, "ProgressDeadlineExceeded", "ImagePullBackOff", id="a bad image"),
        pytest.param({"extraArgs": ["--nonsense"]}, "EngineFailed", "SGLang knows no such flag", id="a bad flag"),
    ],
)
def test_where_the_engine_owns_its_gpus_it_is_not_stopped_for_one_that_cannot_start(
    edit: dict[str, Any], reason: str, why: str
) -> None:
    world = started(gpu=PLUGIN)
    active = world.kube.objects["LingSlot", "tiny-0"]["status"]["active"]
    world.kube.put_deployment("tiny", on_gpus(PLUGIN, **edit))
    for _ in range(80):  # 40 s; the deadline is 20
        world.look()
        world.kube.tick()
        assert world.kube.serving() == ["tiny-0"]
    assert world.kube.objects["LingSlot", "tiny-0"]["status"]["active"] == active
    assert world.condition("Progressing") == ("False", reason)
    assert why in told(world, "Progressing")
    world.kube.put_deployment("tiny", on_gpus(PLUGIN, contextLength=8192))
    world.settle()
    assert pod(world, "engine")["containers"][0]["args"].count("--context-length=8192") == 1
    assert world.condition("Progressing") == ("True", "Complete")


def test_what_is_tried_without_its_gpus_is_told_which_they_are() -> None:
    world = started(gpu=PLUGIN)
    world.kube.put_deployment("tiny", on_gpus(PLUGIN, contextLength=8192))
    for _ in range(4):
        world.look()
    (tried,) = pod(world, "check")["containers"]
    assert "--for-gpu=9.0" in tried["args"]
    assert "nvidia.com/gpu" not in tried["resources"]["limits"]
    assert world.kube.serving() == ["tiny-0"]


def test_an_agent_that_does_not_tell_the_gpu_lets_the_edit_go_on_untried() -> None:
    world = started(gpu=PLUGIN)
    slot = world.kube.objects["LingSlot", "tiny-0"]
    world.kube.put_deployment("tiny", on_gpus(PLUGIN, contextLength=8192))
    for _ in range(20):
        slot["status"]["computeCapability"] = ""
        world.look()
        world.kube.tick()
    assert not [name for name in world.pods() if name.endswith("-check")]
    assert "--context-length=8192" in pod(world, "engine")["containers"][0]["args"]
