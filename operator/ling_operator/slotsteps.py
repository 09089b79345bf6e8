"""The next step inside one slot: its spec, its slot pod, its label, its engines, in this order. Pure.

Nothing that serves, or that could take over, is deleted before the target's engine is active.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_api.v1alpha1 import LingDeploymentSpec, LingSlotSpec, Wish
from ling_operator import builders
from ling_operator.actions import Apply, Create, Delete, Label, Step
from ling_operator.rollout import wish_failed
from ling_operator.views import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_operator.settings import Images
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.views import Observed, PodView

ADMISSION_PAUSE: Final = 1.0  # seconds that a pod which failed at once is left before the next one is made


def _wish(facts: SlotFacts, target: str) -> Wish | None:
    """The wish to stand in the slot's spec.

    A checked engine of the target is wished for while another one is active, at the term that is now. A wish that was
    made stays while its pod may still fulfil it.
    """
    active, said = facts.active, facts.slot.status.active
    ready = [
        one
        for one in facts.live_engines
        if one.revision == target and (told := facts.reported(one)) is not None and told.role in ("gated", "warm")
    ]
    other = active is not None and active.revision != target and said is not None
    if other and ready and said is not None and not wish_failed(facts, ready[0]):
        return Wish(pod=ready[0].name, term=said.term)
    old = facts.slot.spec.wish
    if old is not None and any(one.name == old.pod and one.revision == target for one in facts.live_engines):
        return old
    return None


def wanted_spec(facts: SlotFacts, spec: LingDeploymentSpec, target: str) -> LingSlotSpec:
    """The slot's spec as it should be: `revisions` names the target and whatever may still run."""
    running = {one.revision for one in facts.engines if not one.terminal}
    return LingSlotSpec(
        deployment=facts.slot.spec.deployment,
        revision=target,
        revisions=tuple(sorted(running | {target})),
        capacity=facts.slot.spec.capacity,
        grace_seconds=spec.grace_seconds,
        hold_seconds=spec.hold_seconds,
        wish=_wish(facts, target),
    )


def _slot_pod_steps(observed: Observed, facts: SlotFacts, images: Images) -> Iterator[Step]:
    pod = facts.slot_pod
    if pod is not None and pod.terminal and not pod.deleting:
        yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why=f"the slot pod failed: {pod.trouble}")
    elif pod is None and not facts.lost:
        engine_node = next((one.node for one in facts.engines if one.node and not one.terminal), "")
        node = engine_node or (facts.slot.status.node if facts.live_engines else "")
        body = builders.build_slot_pod(observed, facts.slot, images, node)
        yield Create(kind="Pod", body=body, why="the slot has no slot pod")


def unserved_since(facts: SlotFacts) -> float | None:
    """When the slot stopped serving; None while it serves or before anybody said so."""
    condition = facts.slot.status.condition(names.SERVING)
    if condition is None or condition.true:
        return None
    return seconds(condition.last_transition_time)


def _label_steps(facts: SlotFacts, hold: int, others_serve: bool, now: float) -> Iterator[Step]:
    pod = facts.slot_pod
    if pod is None or not pod.live:
        return
    since = unserved_since(facts)
    too_long = since is not None and now - since >= hold and others_serve

    def label(value: str | None, why: str) -> Label:
        return Label(kind="Pod", name=pod.name, uid=pod.uid, label=names.LABEL_SERVING, value=value, why=why)

    if facts.serving and not pod.serving:
        yield label("true", "the slot serves")
    elif pod.serving and too_long:
        yield label(None, f"the slot has not served for {hold} s, others do")


def free_number(facts: SlotFacts, observed: Observed, revision: str) -> int:
    """The lowest N for which no engine pod of this slot and revision exists, terminating ones included."""
    prefix = f"{facts.name}-{revision}-"
    taken = {one.name for one in observed.pods}
    return next(n for n in range(len(taken) + 1) if f"{prefix}{n}" not in taken)


def _too_soon(facts: SlotFacts, revision: str, now: float) -> bool:
    """An engine pod of the revision failed right at its admission a moment ago."""
    return any(
        one.terminal and one.revision == revision and now - one.created < ADMISSION_PAUSE for one in facts.engines
    )


def _engine_steps(observed: Observed, facts: SlotFacts, target: str, grace: int, now: float) -> Iterator[Step]:
    slot_pod = facts.slot_pod
    targets = [one for one in facts.live_engines if one.revision == target]
    known = next((one for one in observed.revisions if one.owned and one.revision == target), None)
    placed = slot_pod is not None and slot_pod.live and slot_pod.node
    if not targets and placed and slot_pod is not None and known is not None and not _too_soon(facts, target, now):
        number = free_number(facts, observed, target)
        body = builders.build_engine_pod(observed, facts.slot, slot_pod, target, known.part, number)
        yield Create(kind="Pod", body=body, why=f"no engine of revision {target}")
    for pod in facts.engines:
        if pod.terminal and not pod.deleting and now - pod.created >= ADMISSION_PAUSE:
            yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why=f"the engine pod failed: {pod.trouble}")
    for pod, why in _surplus(facts, target):
        yield Delete(kind="Pod", name=pod.name, uid=pod.uid, grace=grace + builders.ENGINE_MARGIN, why=why)


def _surplus(facts: SlotFacts, target: str) -> Iterator[tuple[PodView, str]]:
    """Engines that nobody needs any more."""
    active = facts.active if facts.active is not None and facts.active.live else None
    keep_target = active if active is not None and active.revision == target else None
    for pod in facts.live_engines:
        if active is not None and pod.revision != target and pod is not active:
            yield pod, f"revision {pod.revision} is neither wanted nor active"
        elif active is None and pod.revision != target and (pod.broken or pod.unschedulable):
            yield pod, f"it never ran, and revision {target} is wanted: {pod.trouble}"
        elif pod.revision == target:
            if keep_target is None:
                keep_target = pod
            elif pod is not keep_target:
                yield pod, "one engine of a revision is enough"


def slot_steps(
    observed: Observed, facts: SlotFacts, target: str, images: Images, *, others_serve: bool, now: float
) -> Iterator[Step]:
    """What is to be done in this slot, the most urgent first."""
    spec = observed.spec
    if spec is None:
        return
    wanted = wanted_spec(facts, spec, target)
    if wanted != facts.slot.spec:
        body = builders.build_slot(observed, facts.name, wanted)
        body["metadata"]["uid"] = facts.slot.uid
        wish = f", wish {wanted.wish.pod}" if wanted.wish is not None else ""
        yield Apply(kind="LingSlot", body=body, why=f"revision {target}{wish}")
    yield from _label_steps(facts, spec.hold_seconds, others_serve, now)
    yield from _slot_pod_steps(observed, facts, images)
    yield from _engine_steps(observed, facts, target, spec.grace_seconds, now)
