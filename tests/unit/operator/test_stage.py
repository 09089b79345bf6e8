"""The steps of a rollout in words, and what of them is news."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.operator import test_plan as t

from ling_api.slotstatus import Condition
from ling_operator.slotfacts import facts_of
from ling_operator.stage import stages
from ling_operator.status import build_status
from ling_operator.transitions import events_of

if TYPE_CHECKING:
    from ling_operator.views import Observed, SlotView

TOLD = {t.OLD: "active", t.NEW: "gated"}
STILL = (t.SLOT_POD, t.ENGINE_OLD)
PULLED = (*STILL, replace(t.ENGINE_NEW, phase="Pending"))


def changing(**more: Any) -> SlotView:
    return t.slot("chat-0", t.NEW, t.OLD, **{"active": t.OLD, "roles": {t.OLD: "active"}, **more})


def saying(view: SlotView, message: str, phase: str = "gated") -> SlotView:
    engines = tuple(replace(one, phase=phase if one.revision == t.NEW else "") for one in view.status.engines)
    return replace(view, status=replace(view.status, message=message, engines=engines))


ROWS = [
    pytest.param((changing(), STILL), "a new engine is made", id="no pod"),
    pytest.param((changing(), PULLED), "a new engine is made", id="its image is pulled"),
    pytest.param((changing(), t.BOTH), "the new engine is checked", id="the agent has not heard of it"),
    pytest.param((changing(roles=TOLD), t.BOTH), "the new engine takes over", id="checked"),
    pytest.param(
        (saying(changing(roles=TOLD), "", "attached"), t.BOTH), "the new engine takes over (handover)", id="handover"
    ),
    pytest.param(
        (saying(changing(active="", roles={t.OLD: "draining", t.NEW: "gated"}), "7% filled", "filling"), t.BOTH),
        "the new engine takes over (swap: requests wait), 7% filled",
        id="swap, and it fills",
    ),
    pytest.param((changing(active=t.NEW, roles={t.NEW: "active"}), t.BOTH), "the old engine ends", id="taken over"),
    pytest.param(
        (saying(t.slot("chat-0", t.NEW, roles={t.NEW: "gated"}), "45% filled"), (t.SLOT_POD, t.ENGINE_NEW)),
        "the new engine starts, 45% filled",
        id="the first start",
    ),
    pytest.param(t.done("chat-0"), None, id="done"),
    pytest.param(t.done("chat-0", t.OLD), None, id="not its turn yet"),
]


@pytest.mark.parametrize(("pair", "said"), ROWS)
def test_the_step_of_a_slot_that_changes(pair: Any, said: str | None) -> None:
    assert stages(facts_of(t.with_slots(pair)), t.NEW) == (f"chat-0: {said}" if said else "")


def progressing(seen: Observed) -> Condition:
    built = build_status(seen, t.plan(seen, t.IMAGES, t.NOW), t.NOW)
    return next(one for one in map(Condition.from_dict, built["conditions"]) if one.type == "Progressing")


def test_the_condition_says_the_step_first_and_then_the_revisions() -> None:
    said = progressing(t.with_slots((changing(), t.BOTH)))
    assert (said.status, said.reason) == ("True", "Updating")
    assert said.message == f"chat-0: the new engine is checked; revision {t.OLD} is being replaced by {t.NEW}"


@pytest.mark.parametrize(
    ("before", "now", "events"),
    [
        pytest.param("a: checked; r", "a: takes over; r", ["RolloutStep"], id="a step"),
        pytest.param("a: takes over, 7% filled; r", "a: takes over, 8% filled; r", [], id="a fill that goes on"),
        pytest.param("a: checked; r", "a: checked; r", [], id="nothing new"),
    ],
)
def test_a_step_is_an_event_and_the_progress_of_a_fill_is_none(before: str, now: str, events: list[str]) -> None:
    old = Condition(type="Progressing", status="True", reason="Updating", message=before)
    new = replace(old, message=now, last_transition_time="2030-01-01T00:00:00Z")
    assert [one.reason for one in events_of([old], {"conditions": [new.to_dict()]})] == events
