"""The whole operator but its process, against an API server and a node in memory."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.fake_kube import Died
from tests.support.operator_world import KEY, World, as_wanted, spec, started

from ling_operator.kube import ApiError, Conflict
from ling_operator.reconcile import Reconciler
from ling_operator.settings import Images, Settings


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


@pytest.mark.parametrize(("edits", "looks"), [(3, 3), (12, 1), (12, 0)], ids=["slow", "twelve", "twelve at once"])
def test_edits_coalesce_to_the_newest(edits: int, looks: int) -> None:
    world = started(replicas=2)
    for number in range(edits):
        world.kube.put_deployment("tiny", spec(replicas=2, context=5000 + number))
        for _ in range(looks):
            world.look()
            world.kube.tick()
            assert len(world.kube.serving()) == 2
    world.settle()
    as_wanted(world, 2)
    (context,) = {
        arg
        for pod in world.kube.of_kind("Pod")
        for arg in pod["spec"]["containers"][0].get("args", ())
        if "context" in arg
    }
    assert context == f"--context-length={5000 + edits - 1}"
    assert world.events().count("RolloutCompleted") == 2, "the first start and one rollout"
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


def tight() -> World:
    """A slot that serves and has no room for a second server: an edit is a swap."""
    world = World()
    world.kube.tight = True
    world.kube.put_deployment("tiny", spec())
    world.settle()
    return world


def until_nobody_serves(world: World) -> None:
    """The old server ends for the new one."""
    for _ in range(20):
        world.look()
        world.kube.tick()
        if not world.kube.serving():
            return
    raise AssertionError("no swap has begun")


def test_a_swap_stops_the_old_server_for_the_new_one_and_its_steps_are_told() -> None:
    world = tight()
    world.kube.put_deployment("tiny", spec(image="good:1"))
    until_nobody_serves(world)
    world.settle()
    as_wanted(world, 1)
    assert world.engine_images() == {"good:1"}
    told = [one["message"].split(";")[0] for one in world.kube.of_kind("Event") if one["reason"] == "RolloutStep"]
    assert "tiny-0: the new engine takes over (swap: requests wait)" in told
    assert len(told) == len(set(told))


def test_how_far_a_fill_is_is_told_now_and_then() -> None:
    world = World()
    world.kube.put_deployment("tiny", spec(image="hanging:1", rollout={"progressDeadlineSeconds": 900}))
    world.settle()
    (slot,) = world.kube.of_kind("LingSlot")
    seen, writes = set(), world.kube.writes
    for number in range(1, 61):  # a minute
        slot["status"]["message"] = f"{number}% filled"
        world.kube.now += 1
        world.look()
        seen.add(world.status()["message"])
    assert "tiny-0: 60% filled" in seen or "tiny-0: 46% filled" in seen, seen
    assert 4 <= world.kube.writes - writes <= 6
    assert world.condition("Ready") == ("False", "NotServing")


def test_a_swap_to_a_server_that_hangs_ends_with_the_deadline() -> None:
    world = tight()
    old = world.status()["updateRevision"]
    world.kube.put_deployment("tiny", spec(image="hanging:1"))
    until_nobody_serves(world)
    begun = world.kube.now
    while not world.kube.serving():
        world.look()
        world.kube.tick()
        assert world.kube.now - begun < 20 + 5, "the deadline, and a few looks"
    world.settle()
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.status()["currentRevision"] == old
    assert world.engine_images() == {"engine:1"}
    world.kube.put_deployment("tiny", spec(image="good:1"))
    world.settle()
    as_wanted(world, 1)


@pytest.mark.parametrize("after", [{}, {"image": "good:1"}], ids=["a revert", "another edit"])
def test_a_swap_to_a_server_that_hangs_ends_with_the_next_edit(after: dict[str, str]) -> None:
    world = tight()
    world.kube.put_deployment("tiny", spec(image="hanging:1", rollout={"progressDeadlineSeconds": 900}))
    until_nobody_serves(world)
    world.look()
    world.kube.tick()
    (state,) = world.kube.agents.values()
    assert state.starting, "the new server was let go"
    begun = world.kube.now
    world.kube.put_deployment("tiny", spec(**after, rollout={"progressDeadlineSeconds": 900}))
    while not world.kube.serving():
        world.look()
        world.kube.tick()
        assert world.kube.now - begun < 5 + 5, "holdSeconds, and a few looks"
    world.settle()
    as_wanted(world, 1)


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
    newer = Settings(images=Images(nodeagent="agent:2", reference="engine:2", sglang="sglang:2"))
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


@pytest.mark.parametrize("late", [pytest.param(False, id="at once"), pytest.param(True, id="no watch tells of it")])
def test_a_service_of_somebody_else_is_left_alone_and_named(late: bool) -> None:
    world = World(late=late)
    foreign = {
        "kind": "Service",
        "metadata": {"name": "tiny", "namespace": KEY[0]},
        "spec": {"selector": {"a": "b"}},
    }
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "tiny-slots", "namespace": KEY[0]},
        "spec": {"minAvailable": 7},
    }
    asyncio.run(world.kube.create(foreign))
    asyncio.run(world.kube.create(budget))
    world.kube.put_deployment("tiny", spec())
    for _ in range(2):
        world.settle()
        assert world.kube.objects["Service", "tiny"]["spec"] == {"selector": {"a": "b"}}
        assert world.kube.objects["PodDisruptionBudget", "tiny-slots"]["spec"] == {"minAvailable": 7}
        assert world.condition("Degraded") == ("True", "ServiceNameTaken")
        assert world.events().count("ServiceNameTaken") == 1
        assert len(world.pods()) == 2
        if late:
            asyncio.run(world.mirror.sync())
    world.kube.remove("Service", "tiny")
    if late:
        asyncio.run(world.mirror.sync())
    world.settle()
    assert world.kube.objects["Service", "tiny"]["spec"]["selector"]["ling.dev/deployment"] == "tiny"
    assert world.condition("Degraded")[0] == "False"


def test_a_service_of_ours_that_lost_its_label_is_mended() -> None:
    world = World(late=True)
    world.kube.put_deployment("tiny", spec())
    world.settle()
    service = world.kube.objects["Service", "tiny"]
    service["metadata"]["labels"].clear()
    service["spec"]["selector"] = {}
    world.settle()
    world.settle()
    assert world.kube.objects["Service", "tiny"]["spec"]["selector"]["ling.dev/deployment"] == "tiny"
    assert world.condition("Degraded")[0] == "False"


def test_a_port_edit_reaches_the_service() -> None:
    world = started()
    world.kube.put_deployment("tiny", spec(service={"port": 8080}))
    world.settle()
    assert [one["port"] for one in world.kube.objects["Service", "tiny"]["spec"]["ports"]] == [8080]


def test_a_port_and_an_owner_of_somebody_else_stay_and_the_work_goes_on() -> None:
    world = started()
    service = world.kube.objects["Service", "tiny"]
    ours = dict(service["spec"]["ports"][0])
    foreign = {"name": "metrics", "port": 9090, "targetPort": 9090, "protocol": "TCP"}
    service["spec"]["ports"].insert(0, foreign)
    service["metadata"]["ownerReferences"].append({"kind": "Application", "name": "shop", "uid": "uid-shop"})
    writes = world.kube.writes
    world.look()
    assert world.kube.writes == writes
    world.kube.put_deployment("tiny", spec(context=8192))
    world.settle()
    as_wanted(world, 1)
    assert world.kube.objects["Service", "tiny"]["spec"]["ports"] == [foreign, ours]


def test_a_calm_object_costs_no_write() -> None:
    world = started()
    writes = world.kube.writes
    for _ in range(5):
        world.look()
        world.kube.tick()
    assert world.kube.writes == writes


@pytest.mark.parametrize("slo", [{}, {"ttftMs": 1, "tpotMs": 100}], ids=["no slo", "an slo, whose message has figures"])
def test_figures_alone_are_written_now_and_then(slo: dict[str, int]) -> None:
    world = started(slo=slo) if slo else started()
    (slot,) = world.kube.of_kind("LingSlot")
    world.kube.now += 60
    writes = world.kube.writes
    for number in range(1, 31):  # a minute of a busy slot
        slot["status"]["engines"][0] |= {"requests": number, "ttftMs": 5.0 + number, "tpotMs": 1.0}
        world.kube.now += 2
        after = asyncio.run(world.reconciler.reconcile(KEY))
    assert 3 <= world.kube.writes - writes <= 5
    assert after is not None
    world.kube.now += after
    world.look()
    assert world.status()["performance"]["requests"] == 30, "the last one too"


def test_series_of_a_deleted_object_vanish() -> None:
    world = started()
    assert b'name="tiny"' in world.metrics.text()
    del world.kube.objects["LingDeployment", "tiny"]
    world.look()
    assert b'name="tiny"' not in world.metrics.text()


def refuse(world: World, monkeypatch: pytest.MonkeyPatch, name: str, status: int) -> None:
    """Let the API server refuse to make the pod of that name."""
    create, error = world.kube.create, {403: ApiError, 409: Conflict, 422: ApiError}[status]

    async def refusing(body: dict[str, Any]) -> Any:
        if (body["kind"], body["metadata"]["name"]) == ("Pod", name):
            raise error(status, f"pods {name}: refused")
        return await create(body)

    monkeypatch.setattr(world.kube, "create", refusing)


def refuse_all(world: World, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, said: str) -> None:
    """Let the API server refuse to make anything of that kind, saying that sentence."""

    def refusing(verb: Any) -> Any:
        async def answer(body: dict[str, Any], *more: Any) -> Any:
            if body["kind"] == kind:
                raise ApiError(status, f"POST /{kind}: {status}: {said}", said)
            return await verb(body, *more)

        return answer

    monkeypatch.setattr(world.kube, "create", refusing(world.kube.create))
    monkeypatch.setattr(world.kube, "apply", refusing(world.kube.apply))


QUOTA = 'pods "tiny-0" is forbidden: exceeded quota: team'
WEBHOOK = 'failed calling webhook "policy.example.com": connection refused'


@pytest.mark.parametrize(
    ("kind", "status", "said", "reason", "what"),
    [
        pytest.param(
            "Pod", 403, QUOTA, "CreateRefused", "tiny-0: the API server refuses to create Pod tiny-0", id="quota"
        ),
        pytest.param("Pod", 500, WEBHOOK, "CreateRefused", "create Pod tiny-0", id="a webhook that is away"),
        pytest.param("LingSlot", 400, "no", "CreateRefused", "tiny-0: the API server refuses", id="a webhook says no"),
        pytest.param(
            "Service", 403, "no", "ChangeRefused", "the API server refuses to apply Service tiny", id="policy"
        ),
    ],
)
def test_what_is_refused_stands_in_the_conditions_until_it_works(
    kind: str, status: int, said: str, reason: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.kube.put_deployment("tiny", spec())
    with monkeypatch.context() as patch:
        refuse_all(world, patch, kind, status, said)
        assert look_often(world, 20) > 10
        assert world.condition("Degraded") == ("True", reason)
        (degraded,) = [one["message"] for one in world.status()["conditions"] if one["type"] == "Degraded"]
        assert what in degraded
        assert said in degraded
        assert kind == "Service" or said in world.status()["message"]
        assert world.events().count(reason) == 1, "told once, however often it is tried"
        assert world.condition("Ready")[0] == str(kind == "Service"), "a Service that is refused holds up no slot"
        writes = world.kube.writes
        world.restart()
        assert look_often(world, 10) == 10
        assert world.kube.writes == writes, "a new operator knows it too: nothing flaps"
    world.settle()
    as_wanted(world, 1)
    assert world.condition("Degraded")[0] == "False"
    assert "refused" not in world.status()
    assert world.events().count("Recovered") == 1


def test_a_refusal_of_what_is_wanted_no_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    revision = world.status()["updateRevision"]
    with monkeypatch.context() as patch:
        refuse_all(world, patch, "Pod", 403, QUOTA)
        world.kube.put_deployment("tiny", spec(context=8192))
        look_often(world, 6)
        assert world.condition("Degraded") == ("True", "CreateRefused")
        world.kube.put_deployment("tiny", spec())
        assert look_often(world, 6) == 0
    assert world.condition("Degraded")[0] == "False"
    assert world.status()["updateRevision"] == revision


def test_time_in_which_no_operator_looked_counts_against_no_revision() -> None:
    world = started()
    world.kube.put_deployment("tiny", spec(context=8192))
    for _ in range(6):
        world.look()
    for _ in range(12):  # a minute; the deadline is 20 s
        world.kube.now += 5
        world.kube.tick()
    world.restart()
    world.settle()
    as_wanted(world, 1)
    assert not set(world.events()) & {"ProgressDeadlineExceeded", "EngineFailed"}


def test_an_api_server_that_was_away_counts_against_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    world.kube.put_deployment("tiny", spec(context=8192))
    for _ in range(6):
        world.look()

    async def away(*_: Any) -> Any:
        raise ApiError(0, "nobody answers")

    with monkeypatch.context() as patch:
        for verb in ("create", "apply", "label"):
            patch.setattr(world.kube, verb, away)
        for _ in range(12):
            world.kube.now += 5
            world.kube.tick()
            with contextlib.suppress(ApiError):
                world.look()
    world.settle()
    as_wanted(world, 1)
    assert "ProgressDeadlineExceeded" not in world.events()


def test_the_deadline_names_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started()
    refuse_all(world, monkeypatch, "Pod", 403, QUOTA)
    world.kube.put_deployment("tiny", spec(context=8192))
    look_often(world, 60)  # 30 s; the deadline is 20
    assert world.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert "exceeded quota: team" in world.status()["message"]
    assert world.kube.serving() == ["tiny-0"]


def look_often(world: World, times: int = 40) -> int:
    """Looks, each followed by a round of everybody else's work; how many ended in an error."""
    failed = 0
    for _ in range(times):
        try:
            world.look()
        except ApiError:
            failed += 1
        world.kube.tick()
    return failed


@pytest.mark.parametrize("status", [403, 409, 422])
def test_a_slot_whose_pod_is_refused_holds_up_no_other(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(4)
    world.kube.put_deployment("tiny", spec(replicas=3))
    world.settle()
    with monkeypatch.context() as patch:
        refuse(world, patch, "tiny-0", status)
        world.kube.remove("Pod", "tiny-0")
        dead = world.kube.objects["Pod", "tiny-1"]["spec"]["nodeName"]
        world.kube.machines[dead].ready = False
        failed = look_often(world)
        assert "tiny-1" not in world.kube.serving()
        assert set(world.kube.serving()) >= {"tiny-2", "tiny-3"}, "the dead one's label is off and it is replaced"
        assert failed, "when only the refused slot is left, the look fails and comes again later"
        assert ("CreateRefused" in world.events()) is (status != 409)
    world.kube.machines[dead].ready = True
    world.settle()
    as_wanted(world, 3)


def test_an_api_server_that_does_not_answer_is_asked_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started(nodes=2, replicas=2)
    create, asked = world.kube.create, []

    async def away(body: dict[str, Any]) -> Any:
        if body["kind"] != "Pod":
            return await create(body)
        asked.append(body["metadata"]["name"])
        raise ApiError(0, "nobody answers")

    for name in ("tiny-0", "tiny-1"):
        world.kube.remove("Pod", name)
    monkeypatch.setattr(world.kube, "create", away)
    assert look_often(world, 10) == len(asked) > 0
    assert set(asked) == {"tiny-0"}


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
