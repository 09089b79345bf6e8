"""Edits that come faster than engines do, under load: the last one counts, and what serves stays for the others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks import continuity
from benchmarks.continuity_events import Event, Scene
from hack.cluster import objects
from kubernetes import client
from tests.support import cluster as support
from tests.support import well

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hack.cluster.access import Cluster

NAME = "edited"
RATE = 20.0
EDITS = 12


@pytest.fixture(scope="module")
def scene(cluster: Cluster, model: str) -> Iterator[Scene]:
    """A LingDeployment that serves with the torch-free engine, and a client pod on the other node."""
    well.settle(cluster)
    with support.trial(cluster) as trial:
        trial.apply(
            support.deployment(NAME, model, image=support.STANDIN, drain={"lameDuckSeconds": 1, "graceSeconds": 5})
        )
        trial.wait_condition(NAME, "Ready")
        found = Scene(trial.cluster, trial.name, NAME)
        trial.client(away_from=found.slot()["status"]["node"])
        found.url = trial.address(NAME)
        yield found


def edit(scene: Scene, *lengths: int) -> None:
    """One edit after the other, over one connection: a kubectl for each would be slower than an engine's pod."""
    them = client.CustomObjectsApi(objects.reader(scene.cluster.kubeconfig).api)
    for length in lengths:
        change = {"spec": {"engine": {"contextLength": length}}}
        where = ("ling.dev", "v1alpha1", scene.namespace, "lingdeployments", NAME)
        them.patch_namespaced_custom_object(*where, change, _content_type="application/merge-patch+json")


def lengths(scene: Scene) -> list[int]:
    """The context length that each engine pod was made for."""
    found = [pod["spec"]["containers"][0] for pod in engines(scene)]
    words = [[*one.get("command", ()), *one.get("args", ())] for one in found]
    flags = [word.split("=", 1) for each in words for word in each if word.startswith("--context-length=")]
    return [int(value) for _, value in flags]


def engines(scene: Scene) -> list[dict[str, Any]]:
    return scene.cluster.items("pod", scene.namespace, f"ling.dev/deployment={NAME},ling.dev/component=engine")


def ever_made(scene: Scene) -> set[str]:
    """The uids of all engine pods that the scheduler ever placed, as events tell."""
    events = scene.cluster.items("event", scene.namespace)
    about = [one["involvedObject"] for one in events if one["reason"] == "Scheduled"]
    return {one["uid"] for one in about if one["kind"] == "Pod" and one["name"].startswith(f"{NAME}-0-")}


def test_of_twelve_edits_the_last_one_serves_and_few_engines_are_made(scene: Scene) -> None:
    before = ever_made(scene)
    last = 2000 + EDITS

    def twelve(scene: Scene) -> Event:
        at = time.time()
        edit(scene, *range(2001, last + 1))
        return at, lambda: scene.updated() and lengths(scene) == [last]

    seen = continuity.observe(scene, "twelve edits", twelve, "new", RATE)
    assert seen.failed == 0, seen
    assert seen.sent > RATE
    # one for an early edit, perhaps one more that was under way, and the last one's
    assert len(ever_made(scene) - before) <= EDITS // 3


def test_who_takes_an_edit_back_keeps_the_engine_that_serves(scene: Scene) -> None:
    scene.cluster.wait_for("one engine", lambda: len(engines(scene)) == 1)
    serving = scene.active()
    (before,) = engines(scene)
    (length,) = lengths(scene)

    def there_and_back(scene: Scene) -> Event:
        at = time.time()
        edit(scene, length + 100)
        scene.cluster.wait_for("its engine pod", lambda: length + 100 in lengths(scene))
        edit(scene, length)
        return at, alone(scene, before)

    seen = continuity.observe(scene, "an edit taken back", there_and_back, "keep", RATE)
    assert seen.failed == 0, seen
    assert scene.active()[0] == serving[0]


def alone(scene: Scene, pod: dict[str, Any]) -> Callable[[], bool]:
    """Whether that engine pod, the very same, is the only one."""
    return lambda: scene.updated() and [one["metadata"]["uid"] for one in engines(scene)] == [pod["metadata"]["uid"]]
