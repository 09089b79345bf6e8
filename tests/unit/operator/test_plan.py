"""The planner's tables: what is observed, and the one step that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ling_api.slotstatus import Active, Condition, EngineStatus, LingSlotStatus
from ling_api.v1alpha1 import EnginePart, LingDeploymentSpec, LingSlotSpec, Wish, revision_of
from ling_operator import actions, builders, rollout
from ling_operator.plan import contains, plan
from ling_operator.settings import Images
from ling_operator.slotfacts import facts_of
from ling_operator.surroundings import NodeView
from ling_operator.views import Observed, PodView, Previous, Progress, RevisionView, SlotView, rfc3339

NOW = 1_000_000.0
IMAGES = Images(nodeagent="agent:1", reference="engine:1", sglang="sglang:1")
SPEC = LingDeploymentSpec.from_dict({"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}})
NEW = revision_of(SPEC.part)
OLD, OLDER = "0000000a", "0000000b"
SERVING = Condition(type="Serving", status="True", reason="Active")


def pod(slot: str, component: str, **more: Any) -> PodView:
    revision = more.pop("revision", "")
    number = more.pop("number", 0)
    name = slot if component == "slot" else f"{slot}-{revision}-{number}"
    values: dict[str, Any] = {
        "uid": f"uid-{name}",
        "slot_uid": f"uid-{slot}",
        "node": "node-1",
        "deleting": False,
        "phase": "Running",
        "ready": True,
        "serving": component == "slot",
        "unschedulable": False,
        "broken": False,
        "trouble": "",
        "created": NOW - 100,
        **more,
    }
    return PodView(name=name, slot=slot, component=component, revision=revision, number=number, **values)


def told(slot: str, revision: str, role: str, **more: Any) -> EngineStatus:
    name = f"{slot}-{revision}-0"
    return EngineStatus(pod=name, uid=f"uid-{name}", revision=revision, role=role, **more)


def slot(
    name: str, revision: str, *revisions: str, active: str = "", roles: dict[str, str] | None = None, **more: Any
) -> SlotView:
    """A LingSlot; `active` is the revision that serves, `roles` what the agent says of each revision's engine."""
    engines = tuple(told(name, one, role, **more.get("engine", {})) for one, role in (roles or {}).items())
    engine = f"{name}-{active}-0" if active else ""
    status = LingSlotStatus(
        node="node-1",
        active=Active(pod=engine, uid=f"uid-{engine}", term=7),
        engines=engines,
        conditions=(SERVING,) if active else (),
    )
    spec = LingSlotSpec(
        deployment="chat",
        revision=revision,
        revisions=tuple(sorted({revision, *revisions})),
        capacity=more.get("capacity", SPEC.memory),
        grace_seconds=120,
        hold_seconds=60,
        wish=more.get("wish"),
    )
    return SlotView(
        name=name,
        uid=f"uid-{name}",
        number=int(name.rsplit("-", 1)[1]),
        deleting=more.get("deleting", False),
        owned=more.get("owned", True),
        spec=spec,
        status=status,
        created=NOW - 100,
    )


def known(*revisions: str) -> tuple[RevisionView, ...]:
    part = EnginePart.from_dict({"model": {"source": "host:///tiny"}, "engine": {"image": "engine:1"}})
    return tuple(
        RevisionView(name=f"chat-{one}", uid=f"uid-{one}", revision=one, number=n, part=part, owned=True)
        for n, one in enumerate(revisions, 1)
    )


def observed(*, replicas: int = 1, **more: Any) -> Observed:
    base = Observed(
        name="chat",
        namespace="prod",
        uid="uid-chat",
        generation=2,
        resource_version="9",
        deleting=False,
        spec=replace(SPEC, replicas=replicas),
        complaint="",
        previous=Previous(current_revision=OLD, progress=Progress(revision=NEW, updated=0, since=NOW, started=NOW)),
        revisions=known(OLDER, OLD, NEW),
        agents=frozenset({"node-1"}),
        nodes={"node-1": NodeView(name="node-1")},
        now=NOW,
    )
    service = {**builders.build_service(base, 80)}
    service["metadata"] = {**service["metadata"], "uid": "uid-service"}
    budgets = {
        one["metadata"]["name"]: {**one, "metadata": {**one["metadata"], "uid": "uid-budget"}}
        for one in (builders.build_budget(base, kind, replicas) for kind in ("slot", "engine"))
    }
    return replace(base, **{"service": service, "budgets": budgets, **more})


def done(name: str, revision: str = NEW) -> tuple[SlotView, tuple[PodView, ...]]:
    """A slot that serves a revision and has nothing left to do for it."""
    view = slot(name, revision, active=revision, roles={revision: "active"})
    return view, (pod(name, "slot"), pod(name, "engine", revision=revision))


def with_slots(*pairs: tuple[SlotView, tuple[PodView, ...]], replicas: int = 1, **more: Any) -> Observed:
    slots = tuple(view for view, _ in pairs)
    pods = tuple(one for _, pods in pairs for one in pods)
    return observed(replicas=replicas, slots=slots, pods=pods, **more)


SLOT_POD = pod("chat-0", "slot")
ENGINE_OLD = pod("chat-0", "engine", revision=OLD)
ENGINE_NEW = pod("chat-0", "engine", revision=NEW)
BOTH = (SLOT_POD, ENGINE_OLD, ENGINE_NEW)
WISH = Wish(pod=ENGINE_NEW.name, term=7)
GATED = {OLD: "active", NEW: "gated"}

ONE_SLOT = [
    pytest.param(observed(revisions=known(OLD)), f"create ControllerRevision chat-{NEW}", id="a new revision"),
    pytest.param(observed(service=None), "apply Service chat", id="no service"),
    pytest.param(observed(), "create LingSlot chat-0", id="no slot"),
    pytest.param(
        with_slots((slot("chat-0", NEW, deleting=True), ())),
        "create LingSlot chat-1",
        id="a slot that leaves has its name",
    ),
    pytest.param(
        observed(pods=(replace(SLOT_POD, deleting=True, slot_uid="gone"),)),
        "create LingSlot chat-1",
        id="a pod of a slot that is gone takes its name",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, owned=False), ())), "create LingSlot chat-1", id="a slot of an earlier object"
    ),
    pytest.param(
        with_slots((replace(slot("chat-0", NEW), status=LingSlotStatus()), ())), "create Pod chat-0", id="no slot pod"
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW), (replace(SLOT_POD, node="", serving=False),))),
        None,
        id="a slot pod without node",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW), (replace(SLOT_POD, serving=False),))),
        f"create Pod chat-0-{NEW}-0",
        id="a slot pod with a node",
    ),
    pytest.param(
        with_slots((done("chat-0")[0], (replace(SLOT_POD, serving=False), ENGINE_NEW))),
        "label Pod chat-0",
        id="it serves",
    ),
    pytest.param(with_slots(done("chat-0")), None, id="all is well"),
    pytest.param(
        with_slots((done("chat-0")[0], (SLOT_POD, replace(ENGINE_NEW, deleting=True)))),
        f"create Pod chat-0-{NEW}-1",
        id="an engine that leaves keeps its name till it is gone",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW), (SLOT_POD, replace(ENGINE_NEW, phase="Failed")))),
        f"create Pod chat-0-{NEW}-1",
        id="a failed engine is replaced at once",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW), (SLOT_POD, replace(ENGINE_NEW, phase="Failed", created=NOW)))),
        None,
        id="one that failed at its admission a moment ago is not",
    ),
    pytest.param(
        with_slots((done("chat-0")[0], (replace(SLOT_POD, phase="Failed"), ENGINE_NEW))),
        "delete Pod chat-0",
        id="a failed slot pod makes room for its like",
    ),
    pytest.param(with_slots((slot("chat-0", NEW), ())), "create LingSlot chat-1", id="a slot that lost all its pods"),
]

UPGRADE = [
    pytest.param(with_slots(done("chat-0", OLD)), "apply LingSlot chat-0", id="the slot is told the revision first"),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=OLD, roles={OLD: "active"}), (SLOT_POD, ENGINE_OLD))),
        f"create Pod chat-0-{NEW}-0",
        id="then it gets the new engine",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=OLD, roles={OLD: "active"}), BOTH)),
        None,
        id="it is being checked",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=OLD, roles=GATED), BOTH)),
        "apply LingSlot chat-0",
        id="checked: wish",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=OLD, roles=GATED, wish=WISH), BOTH)), None, id="wished: wait"
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=OLD, roles=GATED, wish=replace(WISH, term=6)), BOTH)),
        "apply LingSlot chat-0",
        id="the term has changed for another reason: wish again",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, roles={OLD: "draining", NEW: "gated"}, wish=WISH), BOTH)),
        None,
        id="in a swap nobody is active: nothing is deleted",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=NEW, roles={OLD: "draining", NEW: "active"}, wish=WISH), BOTH)),
        f"delete Pod chat-0-{OLD}-0",
        id="the new is active: the old goes",
    ),
    pytest.param(
        with_slots((slot("chat-0", NEW, OLD, active=NEW, roles={NEW: "active"}, wish=WISH), (SLOT_POD, ENGINE_NEW))),
        "apply LingSlot chat-0",
        id="the old is gone: the slot names one revision",
    ),
]


def swapped(revision: str, *, phase: str = "started", ago: float = 60, **more: Any) -> Observed:
    """A swap in which the old engine has ended and the new one was let go; nobody has served for `ago` seconds."""
    view = slot("chat-0", revision, OLD, NEW, **more)
    engines = (told("chat-0", OLD, "gated", phase="gated"), told("chat-0", NEW, "gated", phase=phase))
    silent = Condition(type="Serving", status="False", reason="Starting", last_transition_time=rfc3339(NOW - ago))
    status = replace(view.status, engines=engines, conditions=(silent,))
    begun = Progress(revision=NEW, updated=0, since=NOW - 1000, started=NOW - 1000)
    previous = Previous(current_revision=OLD, progress=begun)
    return with_slots((replace(view, status=status), BOTH), previous=previous)


HANGS = [
    pytest.param(swapped(NEW, wish=WISH), "apply LingSlot chat-0", id="the deadline is over: the wish goes first"),
    pytest.param(swapped(OLD), f"delete Pod chat-0-{NEW}-0", id="then the engine that does not come up"),
    pytest.param(swapped(OLD, phase="filling"), f"delete Pod chat-0-{NEW}-0", id="nor does it fill for ever"),
    pytest.param(swapped(OLD, ago=59), None, id="an engine has holdSeconds to start again"),
    pytest.param(swapped(OLD, phase="gated"), None, id="one that was not let go is in nobody's way"),
    pytest.param(replace(swapped(OLD), agents=frozenset()), None, id="what an agent that is away said is old"),
]


@pytest.mark.parametrize(("seen", "step"), [*ONE_SLOT, *UPGRADE, *HANGS])
def test_one_step_follows_from_what_is_seen(seen: Observed, step: str | None) -> None:
    found = plan(seen, IMAGES, NOW).step
    assert (actions.describe(found) if found is not None else None) == step


def test_nothing_is_done_to_an_object_that_leaves_or_makes_no_sense() -> None:
    seen = with_slots(done("chat-0", OLD))
    assert plan(replace(seen, deleting=True), IMAGES, NOW).step is None
    assert plan(replace(seen, spec=None, complaint="spec.x: nonsense"), IMAGES, NOW).step is None


def not_serving(name: str, revision: str) -> tuple[SlotView, tuple[PodView, ...]]:
    view, pods = done(name, revision)
    return replace(view, status=LingSlotStatus(node="node-1")), pods


def halfway(name: str) -> tuple[SlotView, tuple[PodView, ...]]:
    view = slot(name, OLDER, OLD, active=OLD, roles={OLD: "active"})
    engines = (pod(name, "engine", revision=OLD), pod(name, "engine", revision=OLDER))
    return view, (pod(name, "slot"), *engines)


@pytest.mark.parametrize(
    ("slots", "targets"),
    [
        pytest.param([done("chat-0", OLD), done("chat-1", OLD)], {"chat-0": NEW, "chat-1": OLD}, id="first by number"),
        pytest.param([done("chat-0", NEW), done("chat-1", OLD)], {"chat-0": NEW, "chat-1": NEW}, id="then the next"),
        pytest.param(
            [done("chat-0", OLD), not_serving("chat-1", OLD)],
            {"chat-0": OLD, "chat-1": NEW},
            id="not serving first",
        ),
        pytest.param([done("chat-0", OLD), halfway("chat-1")], {"chat-0": OLD, "chat-1": NEW}, id="half-way first"),
        pytest.param(
            [not_serving("chat-0", NEW), done("chat-1", OLD)],
            {"chat-0": NEW, "chat-1": OLD},
            id="one at a time",
        ),
        pytest.param(
            [not_serving("chat-0", OLD), halfway("chat-1")],
            {"chat-0": NEW, "chat-1": OLD},
            id="an edit of before is dropped where it is not the turn",
        ),
    ],
)
def test_slots_change_one_at_a_time(slots: list[Any], targets: dict[str, str]) -> None:
    seen = with_slots(*slots, replicas=2)
    found = plan(seen, IMAGES, NOW)
    assert found.placement is not None
    assert found.rollout is not None
    assert rollout.targets_of(found.placement.good, found.rollout) == targets


def failing(deaths: int, term: int) -> Observed:
    engine = {"deaths": deaths, "last_exit": "exit 7"}
    view = slot("chat-0", NEW, OLD, active=OLD, roles=GATED, wish=replace(WISH, term=term), engine=engine)
    return with_slots((view, BOTH))


@pytest.mark.parametrize(
    ("seen", "since", "reason"),
    [
        pytest.param(failing(0, 7), 10, "", id="in time"),
        pytest.param(failing(0, 7), 901, "ProgressDeadlineExceeded", id="no progress for too long"),
        pytest.param(failing(1, 6), 10, "", id="one death is forgiven"),
        pytest.param(failing(2, 6), 10, "EngineFailed", id="the wished engine died again"),
        pytest.param(failing(2, 7), 10, "", id="it died before, and has been wished for only now"),
    ],
)
def test_a_revision_is_given_up_in_bounded_time(seen: Observed, since: float, reason: str) -> None:
    progress = Progress(revision=NEW, updated=0, since=NOW - since, started=NOW - since)
    seen = replace(seen, previous=replace(seen.previous, progress=progress))
    found = rollout.rollout_of(seen, facts_of(seen), NEW, NOW)
    assert found.given_up == reason
    assert rollout.targets_of(facts_of(seen), found) == {"chat-0": OLD if reason else NEW}
    assert bool(reason) == ("given up" in found.why or "no further" in found.why)


def test_what_was_given_up_stays_so_until_the_next_edit() -> None:
    before = Condition(type="Progressing", status="False", reason="EngineFailed", message="why")
    seen = with_slots(done("chat-0", OLD))
    seen = replace(seen, previous=replace(seen.previous, conditions=(before,), update_revision=NEW))
    assert rollout.rollout_of(seen, facts_of(seen), NEW, NOW).why == "why"
    edited = replace(seen, previous=replace(seen.previous, update_revision=OLDER))
    assert rollout.rollout_of(edited, facts_of(edited), NEW, NOW).given_up == ""


def test_the_plan_asks_to_look_again_when_time_alone_changes_something() -> None:
    seen = with_slots((slot("chat-0", NEW, OLD, active=OLD, roles=GATED, wish=WISH), BOTH))
    after = plan(seen, IMAGES, NOW).requeue_after
    assert after is not None
    assert 900 <= after <= 901


def test_every_label_comes_before_any_other_step_of_a_slot() -> None:
    lost = (done("chat-0")[0], done("chat-0")[1][1:])
    view, (slot_pod, engine) = done("chat-1")
    unlabelled = (view, (replace(slot_pod, serving=False), engine))
    first = plan(with_slots(lost, unlabelled, replicas=2), IMAGES, NOW)
    assert first.step is not None
    assert (actions.describe(first.step), first.slot) == ("label Pod chat-1", "chat-1")
    then = plan(with_slots(lost, done("chat-1"), replicas=2), IMAGES, NOW)
    assert then.step is not None
    assert (actions.describe(then.step), then.slot) == ("create Pod chat-0", "chat-0")


def test_the_steps_of_a_refused_slot_are_left_out() -> None:
    lost = (done("chat-0")[0], done("chat-0")[1][1:])
    others = plan(with_slots(lost, replicas=2), IMAGES, NOW, {"chat-0"})
    assert others.step is not None
    assert (actions.describe(others.step), others.slot) == ("create LingSlot chat-1", "chat-1")
    assert plan(with_slots(lost, replicas=2), IMAGES, NOW, {"chat-0", "chat-1"}).step is None


def test_old_revisions_that_nobody_uses_are_dropped_but_for_five() -> None:
    many = known(*(f"{n:08x}" for n in range(16, 24)), OLD, NEW)
    step = plan(with_slots(done("chat-0"), revisions=many), IMAGES, NOW).step
    assert step is not None
    assert actions.describe(step) == "delete ControllerRevision chat-00000012"


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1}, True, id="more than wanted"),
        pytest.param({"a": 2}, {"a": 1}, False, id="another value"),
        pytest.param({}, {"a": 1}, False, id="missing"),
        pytest.param({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True, id="inside a list"),
        pytest.param({"a": [1, 2]}, {"a": [1]}, False, id="a longer list"),
        pytest.param({"a": [1]}, {"a": []}, False, id="no list is wanted"),
        pytest.param({"a": [{"x": 2}, {"x": 1}]}, {"a": [{"x": 1}]}, True, id="somebody else's item too"),
        pytest.param({"a": [{"x": 2}, {"x": 3}]}, {"a": [{"x": 1}]}, False, id="only items of others"),
        pytest.param({"a": None}, {"a": [{"x": 1}]}, False, id="no list"),
    ],
)
def test_an_object_has_what_is_wanted_of_it(live: Any, wanted: Any, same: bool) -> None:
    assert contains(live, wanted) is same
