"""Where a slot may be is a part of its shape: an edit of it makes new slots, an edit of anything else does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ling_api.slotstatus import LingSlotStatus
from ling_api.v1alpha1 import LingDeploymentSpec, LingSlotSpec, revision_of
from ling_operator.placement import Aim, fits
from ling_operator.slotfacts import facts_of
from ling_operator.views import Observed, Previous, SlotView

if TYPE_CHECKING:
    from ling_api.engine import Place

SELECTED = {"spec": {"nodeSelector": {"pool": "a"}}}


def spec(**template: Any) -> LingDeploymentSpec:
    body = {"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}, "engine": {"podTemplate": template}}
    return LingDeploymentSpec.from_dict(body)


def slot_of(wanted: LingDeploymentSpec, place: Place) -> SlotView:
    revision = revision_of(wanted.part)
    slot = LingSlotSpec(
        deployment="chat",
        revision=revision,
        revisions=(revision,),
        capacity=wanted.memory,
        place=place,
        grace_seconds=120,
        hold_seconds=60,
    )
    assert LingSlotSpec.from_dict(slot.to_dict()) == slot
    return SlotView(
        name="chat-0", uid="u", number=0, deleting=False, owned=True, spec=slot, status=LingSlotStatus(), created=0.0
    )


@pytest.mark.parametrize(
    ("had", "wants", "stays"),
    [
        pytest.param({}, {}, True, id="nothing said"),
        pytest.param(SELECTED, SELECTED, True, id="the same nodes"),
        pytest.param({}, SELECTED, False, id="nodes are chosen"),
        pytest.param(SELECTED, {}, False, id="nodes are chosen no more"),
        pytest.param({}, {"spec": {"tolerations": [{"operator": "Exists"}]}}, False, id="a toleration"),
        pytest.param({}, {"spec": {"priorityClassName": "high"}}, False, id="a priority"),
        pytest.param({}, {"spec": {"imagePullSecrets": [{"name": "a"}]}}, False, id="a pull secret"),
        pytest.param({}, {"spec": {"runtimeClassName": "nvidia"}}, True, id="a runtime class, of engines only"),
        pytest.param({}, {"metadata": {"labels": {"a": "b"}}}, True, id="a label, of engines only"),
    ],
)
def test_a_slot_fits_while_its_place_is_the_wanted_one(had: Any, wants: Any, stays: bool) -> None:
    old, new = spec(**had), spec(**wants)
    view = slot_of(old, old.part.engine.pod_template.place)
    seen = Observed(
        name="chat",
        namespace="prod",
        uid="uid",
        generation=1,
        resource_version="1",
        deleting=False,
        spec=new,
        complaint="",
        previous=Previous(),
        slots=(view,),
    )
    (facts,) = facts_of(seen)
    aim = Aim(memory=new.memory, gpu=new.part.gpu, place=new.part.engine.pod_template.place)
    assert fits(facts, aim) is stays
    assert not fits(facts, replace(aim, memory=new.memory + 1))
