"""The whole operator but its process, against an API server and a node in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_kube import NAMESPACE, Died, FakeKube, controller

if TYPE_CHECKING:
    from collections.abc import Iterator

from ling_operator.metrics import Metrics
from ling_operator.reconcile import Reconciler
from ling_operator.settings import Images, Settings

SETTINGS = Settings(images=Images(nodeagent="agent:1", reference="engine:1"))
KEY = (NAMESPACE, "tiny")
LOOP = asyncio.Runner()


@pytest.fixture(autouse=True, scope="module")
def _loop() -> Iterator[None]:
    """One event loop for all looks of this module."""
    with LOOP:
        yield


def spec(
    *, image: str = "", replicas: int = 1, context: int = 4096, memory: str = "1Gi", **more: Any
) -> dict[str, Any]:
    engine = {"contextLength": context, **({"image": image} if image else {})}
    return {
        "model": {"source": "host:///tiny"},
        "engine": engine,
        "weightCache": {"memory": memory},
        "replicas": replicas,
        "rollout": {"progressDeadlineSeconds": 20},
        "service": {"holdSeconds": 5},
        **more,
    }


class World:
    """A fake cluster and an operator that may be restarted at any time."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.restart()

    def restart(self) -> None:
        """A new operator process: it knows nothing."""
        self.metrics = Metrics(lambda: 0)
        self.reconciler = Reconciler(self.kube, SETTINGS, self.metrics, lambda: self.kube.now)  # type: ignore[arg-type]

    def look(self) -> bool:
        """One reconcile; whether it wrote anything."""
        before = self.kube.writes
        LOOP.run(self.reconciler.reconcile(KEY))
        return self.kube.writes != before

    def settle(self, rounds: int = 400) -> None:
        """Work until nobody has anything to do for a while."""
        calm = 0
        for _ in range(rounds):
            wrote = self.look()
            before = [one["metadata"]["resourceVersion"] for one in self.kube.of_kind("Pod")]
            self.kube.tick()
            after = [one["metadata"]["resourceVersion"] for one in self.kube.of_kind("Pod")]
            calm = calm + 1 if not wrote and before == after else 0
            if calm > 3:
                return
        raise AssertionError(f"not calm after {rounds} rounds: {self.condition('Progressing')}")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.kube.objects["LingDeployment", "tiny"].get("status") or {}
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(one for one in self.status()["conditions"] if one["type"] == kind)
        return found["status"], found["reason"]

    def pods(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.kube.of_kind("Pod"))

    def events(self) -> list[str]:
        return [one["reason"] for one in self.kube.of_kind("Event")]

    def engine_images(self) -> set[str]:
        engines = [one for one in self.kube.of_kind("Pod") if "ling.dev/revision" in one["metadata"]["labels"]]
        return {one["spec"]["containers"][0]["image"] for one in engines}


def started(**more: Any) -> World:
    world = World()
    world.kube.put_deployment("tiny", spec(**more))
    world.settle()
    return world


def as_wanted(world: World, replicas: int) -> None:
    """The end state of every story: exactly the slots, pods and revisions that the spec asks for."""
    slots = world.kube.of_kind("LingSlot")
    assert len(slots) == replicas
    wanted = world.status()["updateRevision"]
    for slot in slots:
        mine = [one for one in world.kube.of_kind("Pod") if controller(one) == slot["metadata"]["uid"]]
        assert sorted(one["metadata"]["labels"]["ling.dev/component"] for one in mine) == ["engine", "slot"]
        assert slot["spec"]["revision"] == wanted
        assert slot["spec"]["revisions"] == [wanted]
        assert slot["status"]["active"]["pod"].startswith(f"{slot['metadata']['name']}-{wanted}-")
    assert len(world.kube.of_kind("Pod")) == 2 * replicas
    assert len(world.kube.serving()) == replicas
    assert world.condition("Progressing") == ("True", "Complete")
    assert world.condition("Ready")[0] == str(replicas > 0)
    assert world.condition("UpdateInProgress")[0] == "False"
    assert world.status()["currentRevision"] == wanted


def test_first_start_makes_slot_engine_and_service() -> None:
    world = started()
    as_wanted(world, 1)
    revision = world.status()["updateRevision"]
    assert world.pods() == ["tiny-0", f"tiny-0-{revision}-0"]
    assert world.events() == ["Serving", "RolloutCompleted", "WeightsHeld"] or set(world.events()) == {
        "Serving",
        "RolloutCompleted",
        "WeightsHeld",
    }
    assert world.status()["serving"] == "1/1"


def test_an_edit_rolls_one_slot_at_a_time_and_serves_throughout() -> None:
    world = started(replicas=3)
    world.kube.put_deployment("tiny", spec(replicas=3, context=8192))
    least, most_changing = 3, 0
    for _ in range(120):
        world.look()
        world.kube.tick()
        least = min(least, len(world.kube.serving()))
        engines = [one["metadata"]["labels"] for one in world.kube.of_kind("Pod")]
        per_slot: dict[str, set[str]] = {}
        for labels in engines:
            if "ling.dev/revision" in labels:
                per_slot.setdefault(labels["ling.dev/slot"], set()).add(labels["ling.dev/revision"])
        most_changing = max(most_changing, sum(len(revisions) > 1 for revisions in per_slot.values()))
    as_wanted(world, 3)
    assert least == 3
    assert most_changing == 1


def test_edits_coalesce_to_the_newest() -> None:
    world = started(replicas=2)
    for context in (5000, 6000, 7000):
        world.kube.put_deployment("tiny", spec(replicas=2, context=context))
        for _ in range(3):
            world.look()
            world.kube.tick()
    world.settle()
    as_wanted(world, 2)
    second = [name for kind, name in world.kube.created if kind == "Pod" and name.startswith("tiny-1-")]
    assert len(second) == 2, "the second slot went from the first revision straight to the last"


def test_a_revert_midway_keeps_what_serves() -> None:
    world = started()
    engine = world.kube.objects["LingSlot", "tiny-0"]["status"]["active"]
    world.kube.put_deployment("tiny", spec(image="missing:1"))
    for _ in range(6):
        world.look()
        world.kube.tick()
    assert len(world.pods()) == 3
    world.kube.put_deployment("tiny", spec())
    world.settle()
    as_wanted(world, 1)
    assert world.kube.objects["LingSlot", "tiny-0"]["status"]["active"] == engine


@pytest.mark.parametrize(
    ("image", "reason", "why"),
    [
        pytest.param("missing:1", "ProgressDeadlineExceeded", "ImagePullBackOff", id="an image that nobody can pull"),
        pytest.param("dying:1", "EngineFailed", "exit 7", id="an engine that dies whenever it is let go"),
    ],
)
def test_a_broken_revision_is_given_up_and_the_old_serves_on(image: str, reason: str, why: str) -> None:
    world = started(replicas=2)
    old = world.status()["updateRevision"]
    before = [one["status"]["active"]["pod"] for one in world.kube.of_kind("LingSlot")]
    world.kube.put_deployment("tiny", spec(replicas=2, image=image))
    for _ in range(120):
        world.look()
        world.kube.tick()
        assert len(world.kube.serving()) == 2
    assert world.condition("Progressing") == ("False", reason)
    assert why in world.status()["message"]
    assert world.condition("Ready") == ("True", "Serving")
    assert world.status()["currentRevision"] == old
    assert [one["status"]["active"]["pod"] for one in world.kube.of_kind("LingSlot")] == before
    assert world.engine_images() == {"engine:1"}
    assert world.events().count(reason) == 1
    world.kube.put_deployment("tiny", spec(replicas=2, context=9000))
    world.settle()
    as_wanted(world, 2)


def test_a_slot_made_after_a_revision_was_given_up_gets_the_last_good_one() -> None:
    world = started()
    world.kube.put_deployment("tiny", spec(image="missing:1"))
    world.settle()
    world.kube.now += 30
    world.settle()
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    world.kube.put_deployment("tiny", spec(image="missing:1", replicas=2))
    world.settle()
    assert world.engine_images() == {"engine:1"}
    assert len(world.kube.serving()) == 2


def test_the_default_image_is_resolved_once() -> None:
    world = started()
    newer = Settings(images=Images(nodeagent="agent:2", reference="engine:2"))
    world.reconciler = Reconciler(world.kube, newer, world.metrics, lambda: world.kube.now)  # type: ignore[arg-type]
    world.settle()
    as_wanted(world, 1)
    assert world.engine_images() == {"engine:1"}
    world.kube.put_deployment("tiny", spec(context=8192))
    world.settle()
    assert world.engine_images() == {"engine:2"}


def test_scale_up_down_and_to_zero() -> None:
    world = started()
    for replicas in (3, 1, 0, 2):
        world.kube.put_deployment("tiny", spec(replicas=replicas))
        world.settle()
        as_wanted(world, replicas)
    assert sorted(one["metadata"]["name"] for one in world.kube.of_kind("LingSlot")) == ["tiny-0", "tiny-1"]


def test_the_slot_that_does_not_serve_goes_first() -> None:
    world = started(replicas=2)
    world.kube.objects["LingSlot", "tiny-0"]["metadata"].pop("x", None)
    engine = next(name for name in world.pods() if name.startswith("tiny-0-"))
    world.kube.objects["Pod", engine]["status"] = {"phase": "Pending"}
    world.kube.objects["Pod", engine]["spec"]["containers"][0]["image"] = "missing:1"
    world.kube.tick()
    world.kube.put_deployment("tiny", spec(replicas=1))
    world.settle()
    assert [one["metadata"]["name"] for one in world.kube.of_kind("LingSlot")] == ["tiny-1"]


def test_a_new_size_makes_new_slots_before_the_old_ones_go() -> None:
    world = started(replicas=2)
    world.kube.put_deployment("tiny", spec(replicas=2, memory="2Gi"))
    for _ in range(200):
        world.look()
        world.kube.tick()
        assert len(world.kube.serving()) >= 2
    as_wanted(world, 2)
    assert {one["spec"]["capacity"] for one in world.kube.of_kind("LingSlot")} == {2 << 30}


def test_an_evicted_engine_pod_is_replaced() -> None:
    world = started()
    engine = world.pods()[1]
    world.kube.objects["Pod", engine]["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    world.settle()
    as_wanted(world, 1)
    assert engine not in world.pods()


def test_a_lost_slot_pod_comes_back_to_the_node_of_its_engine() -> None:
    world = started()
    world.kube.remove("Pod", "tiny-0")
    world.settle()
    as_wanted(world, 1)
    affinity = world.kube.objects["Pod", "tiny-0"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]


def test_a_slot_that_lost_everything_is_replaced_by_one_of_another_name() -> None:
    world = started()
    for name in world.pods():
        world.kube.remove("Pod", name)
    world.kube.tick()
    world.kube.tick()
    world.settle()
    as_wanted(world, 1)
    assert [one["metadata"]["name"] for one in world.kube.of_kind("LingSlot")] == ["tiny-1"]


def test_a_slot_that_does_not_serve_leaves_the_service_after_holding_while_others_do() -> None:
    world = started(replicas=2)
    slot = world.kube.objects["LingSlot", "tiny-0"]
    world.kube.agents[slot["metadata"]["uid"]].deaths = {slot["status"]["active"]["pod"]: 9}
    world.kube.agents[slot["metadata"]["uid"]].active = ""
    for _ in range(3):
        world.look()
        world.kube.tick()
    assert "ling.dev/serving" in world.kube.objects["Pod", "tiny-0"]["metadata"]["labels"], "clients still wait there"
    world.kube.now += 6
    world.settle()
    assert "ling.dev/serving" not in world.kube.objects["Pod", "tiny-0"]["metadata"]["labels"]
    assert world.condition("Degraded") == ("True", "EngineCrashLoop")
    assert world.condition("Ready") == ("True", "Serving")


def test_a_spec_that_makes_no_sense_deletes_nothing() -> None:
    world = started()
    pods = world.pods()
    world.kube.put_deployment("tiny", {**spec(), "gpu": {"allocation": "Quantum"}})
    world.settle()
    assert world.pods() == pods
    assert world.condition("Progressing") == ("False", "InvalidSpec")
    assert world.condition("Ready") == ("True", "Serving")
    assert "write None" in world.status()["message"]


def test_an_agent_that_is_away_is_told_and_nothing_is_deleted() -> None:
    world = started()
    pods = world.pods()
    world.kube.agent_ready = False
    world.settle()
    conditions = {
        one["type"]: one["status"] for one in world.kube.objects["LingSlot", "tiny-0"]["status"]["conditions"]
    }
    assert conditions["AgentLost"] == "True"
    assert conditions["Serving"] == "True"
    assert world.condition("Degraded") == ("True", "AgentLost")
    assert world.pods() == pods
    world.kube.agent_ready = True
    world.settle()
    assert world.condition("Degraded")[0] == "False"


def test_a_service_of_somebody_else_is_left_alone_and_named() -> None:
    world = World()
    foreign = {
        "kind": "Service",
        "metadata": {"name": "tiny", "namespace": NAMESPACE},
        "spec": {"selector": {"a": "b"}},
    }
    LOOP.run(world.kube.create(foreign))
    world.kube.put_deployment("tiny", spec())
    world.settle()
    assert world.kube.objects["Service", "tiny"]["spec"] == {"selector": {"a": "b"}}
    assert world.condition("Degraded") == ("True", "ServiceNameTaken")


def test_a_port_edit_reaches_the_service() -> None:
    world = started()
    world.kube.put_deployment("tiny", spec(service={"port": 8080}))
    world.settle()
    assert [one["port"] for one in world.kube.objects["Service", "tiny"]["spec"]["ports"]] == [8080]


def test_a_calm_object_costs_no_write() -> None:
    world = started()
    writes = world.kube.writes
    for _ in range(5):
        world.look()
        world.kube.tick()
    assert world.kube.writes == writes


def test_series_of_a_deleted_object_vanish() -> None:
    world = started()
    assert b'name="tiny"' in world.metrics.text()
    del world.kube.objects["LingDeployment", "tiny"]
    world.look()
    assert b'name="tiny"' not in world.metrics.text()


STORIES = {
    "apply, then edit": [spec(), spec(context=8192)],
    "scale 1 -> 0": [spec(), spec(replicas=0)],
}


def _story(specs: list[dict[str, Any]], die_at: int) -> tuple[World, int]:
    """Play the specs one after another; the operator dies after its k-th write and is started again."""
    world = World()
    world.kube.die_after = die_at
    for one in specs:
        world.kube.put_deployment("tiny", one)
        try:
            world.settle()
        except Died:
            world.restart()
            world.settle()
    return world, world.kube.writes


@pytest.mark.parametrize("specs", [pytest.param(specs, id=name) for name, specs in STORIES.items()])
def test_death_after_any_write_ends_in_the_same_state_without_an_extra_pod(specs: list[dict[str, Any]]) -> None:
    calm, writes = _story(specs, 0)
    made = sorted(name for kind, name in calm.kube.created if kind == "Pod")
    assert writes > 8
    for k in range(1, writes + 1):
        world, _ = _story(specs, k)
        as_wanted(world, specs[-1]["replicas"])
        assert sorted(name for kind, name in world.kube.created if kind == "Pod") == made, f"k={k}"
        assert len(world.events()) == len({one["metadata"]["name"] for one in world.kube.of_kind("Event")})


IMAGES = st.sampled_from(["", "good:1", "good:2", "missing:1", "dying:1"])
OPERATIONS = st.one_of(
    st.tuples(st.just("edit"), IMAGES),
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("work"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 30])),
    st.tuples(st.just("die"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(0, 6)),
    st.tuples(st.just("fail"), st.integers(0, 6)),
)


class Play:
    """Interprets a random story. `harmless` while nothing but edits, scaling and restarts happened."""

    def __init__(self) -> None:
        self.world = World()
        self.image, self.replicas, self.harmless = "", 2, True
        self._put()
        self.world.settle()

    def _put(self) -> None:
        self.world.kube.put_deployment("tiny", spec(image=self.image, replicas=self.replicas))

    def _pod(self, number: int) -> str | None:
        names = self.world.pods()
        return names[number % len(names)] if names else None

    def do(self, operation: str, argument: Any) -> None:
        kube, world = self.world.kube, self.world
        match operation:
            case "edit":
                self.image = argument
                self._put()
            case "scale":
                self.replicas = argument
                self._put()
            case "work":
                self._work(argument)
            case "wait":
                kube.now += argument
            case "die":
                kube.die_after = kube.writes + argument
                try:
                    self._work(8)
                except Died:
                    world.restart()
                kube.die_after = 0
            case "lose" if (name := self._pod(argument)) is not None:
                self.harmless = False
                kube.remove("Pod", name)
            case "fail" if (name := self._pod(argument)) is not None:
                self.harmless = False
                kube.objects["Pod", name]["status"] = {"phase": "Failed", "reason": "Evicted"}

    def _work(self, rounds: int) -> None:
        for _ in range(rounds):
            before = len(self.world.kube.serving())
            self.world.look()
            self.world.kube.tick()
            if self.harmless and before and self.replicas:
                assert self.world.kube.serving(), "a planned change left nobody serving"


@settings(max_examples=15, deadline=None)
@given(st.lists(OPERATIONS, max_size=14), st.integers(0, 3))
def test_from_any_state_the_plan_leads_to_what_is_wanted(story: list[tuple[str, Any]], replicas: int) -> None:
    play = Play()
    for operation, argument in story:
        play.do(operation, argument)
    play.image, play.replicas = "good:3", replicas
    play._put()
    play._work(1)
    play.world.settle(800)
    as_wanted(play.world, replicas)
