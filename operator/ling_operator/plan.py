"""The one decision of the operator: from what is observed, the next step and what is true. Pure.

One step at a time, nothing remembered: whatever was done is seen in the next look, so a crash between any two steps
costs nothing. Order: revision, service, slots that are too many, each slot's own step, slots that are missing, old
revisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.v1alpha1 import LingSlotSpec, revision_of
from ling_operator import builders
from ling_operator.actions import Apply, Create, Delete, Label, Step
from ling_operator.rollout import Rollout, rollout_of
from ling_operator.slotfacts import SlotFacts, facts_of
from ling_operator.slotsteps import ADMISSION_PAUSE, slot_steps, unserved_since

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ling_operator.settings import Images
    from ling_operator.views import Observed, RevisionView

REVISIONS_KEPT: Final = 5  # ControllerRevisions that nobody uses any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now (nothing, if `step` is None), what is true, and when to look again if nothing happens."""

    step: Step | None
    facts: tuple[SlotFacts, ...] = ()
    rollout: Rollout | None = None
    requeue_after: float | None = None


def _revision_steps(observed: Observed, wanted: str, images: Images) -> Iterator[Step]:
    if any(one.revision == wanted for one in observed.revisions) or observed.spec is None:
        return
    part = observed.spec.part
    image = part.engine.image or images.reference
    number = max((one.number for one in observed.revisions), default=0) + 1
    body = builders.build_revision(observed, wanted, number, replace(part, engine=replace(part.engine, image=image)))
    yield Create(kind="ControllerRevision", body=body, why=f"revision {wanted} is new")


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has all that `wanted` says; lists must have the same length."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contains(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(contains, live, wanted))
    return bool(live == wanted)


def _service_steps(observed: Observed) -> Iterator[Step]:
    if observed.spec is None or observed.service_taken:
        return
    body = builders.build_service(observed, observed.spec.port)
    if observed.service is None:
        # applied, not created: only what was applied can be taken away again by a later apply (the old port)
        yield Apply(kind="Service", body=body, why="the Service is missing")
    elif not contains(observed.service, body) or observed.service["spec"]["selector"] != body["spec"]["selector"]:
        body["metadata"]["uid"] = observed.service["metadata"]["uid"]
        yield Apply(kind="Service", body=body, why="the Service is not as it should be")


def _victims(good: Sequence[SlotFacts], others: Sequence[SlotFacts], replicas: int) -> Iterator[tuple[SlotFacts, str]]:
    """The slots to take away: not serving first, then the newest; those of an old size as the new ones serve."""

    def order(facts: SlotFacts) -> tuple[bool, int]:
        return (facts.reachable, -facts.slot.number)

    for facts in sorted(good, key=order)[: max(0, len(good) - replicas)]:
        yield facts, f"{replicas} slots are wanted"
    for facts in others:
        if facts.lost and len(good) >= replicas:
            yield facts, "its pods are lost"
    misfits = sorted((one for one in others if not one.lost), key=order)
    spare = sum(one.reachable for one in good) + len(misfits) - replicas
    for facts in misfits[: max(0, spare)] if replicas else misfits:
        yield facts, "slots of the new size serve"


def _leave(facts: SlotFacts, why: str) -> Step:
    """Out of the Service first; then the slot, which stays visible until its pods have drained."""
    pod = facts.slot_pod
    if pod is not None and pod.live and pod.serving:
        return Label(kind="Pod", name=pod.name, uid=pod.uid, label=names.LABEL_SERVING, value=None, why=why)
    return Delete(kind="LingSlot", name=facts.name, uid=facts.slot.uid, foreground=True, why=why)


def _missing_steps(
    observed: Observed, good: Sequence[SlotFacts], others: Sequence[SlotFacts], revision: str
) -> Iterator[Step]:
    spec = observed.spec
    misfits = any(not one.lost for one in others)
    if spec is None or len(good) >= spec.replicas or (misfits and not all(one.serving for one in good)):
        return
    taken = {one.name for one in observed.slots} | {one.slot for one in observed.pods}
    number = next(n for n in range(len(taken) + 1) if f"{observed.name}-{n}" not in taken)
    name = f"{observed.name}-{number}"
    wanted = LingSlotSpec(
        deployment=observed.name,
        revision=revision,
        revisions=(revision,),
        capacity=spec.memory,
        grace_seconds=spec.grace_seconds,
        hold_seconds=spec.hold_seconds,
    )
    body = builders.build_slot(observed, name, wanted)
    yield Create(kind="LingSlot", body=body, why=f"{spec.replicas} slots are wanted")


def _old_revisions(observed: Observed, facts: Sequence[SlotFacts], wanted: str) -> Iterator[Step]:
    used = {wanted, observed.previous.current_revision}
    used |= {revision for one in facts for revision in one.slot.spec.revisions}
    used |= {pod.revision for pod in observed.pods}
    unused: list[RevisionView] = [one for one in observed.revisions if one.owned and one.revision not in used]
    for one in sorted(unused, key=lambda view: -view.number)[REVISIONS_KEPT:]:
        yield Delete(kind="ControllerRevision", name=one.name, uid=one.uid, why="nobody uses it any more")


def _steps(
    observed: Observed,
    good: Sequence[SlotFacts],
    others: Sequence[SlotFacts],
    rollout: Rollout,
    images: Images,
    now: float,
) -> Iterator[Step]:
    replicas = observed.spec.replicas if observed.spec else 0
    yield from _revision_steps(observed, rollout.wanted, images)
    yield from _service_steps(observed)
    victims = dict.fromkeys(one.name for one, _ in _victims(good, others, replicas))
    for facts, why in _victims(good, others, replicas):
        yield _leave(facts, why)
    serving = {one.name for one in (*good, *others) if one.serving}
    for facts in (*good, *others):
        if facts.name not in victims:
            target = rollout.targets.get(facts.name, facts.slot.spec.revision)
            elsewhere = bool(serving - {facts.name})
            yield from slot_steps(observed, facts, target, images, others_serve=elsewhere, now=now)
    yield from _missing_steps(observed, good, others, rollout.new_slots)
    yield from _old_revisions(observed, (*good, *others), rollout.wanted)


def _requeue(observed: Observed, facts: Sequence[SlotFacts], rollout: Rollout, now: float) -> float | None:
    """Seconds until time alone changes something: the progress deadline, a label to take off, a pod to make again."""
    spec, moments = observed.spec, []
    if spec is not None and rollout.progress is not None and not rollout.given_up:
        moments.append(rollout.progress.since + spec.progress_deadline_seconds)
    for one in facts:
        since = unserved_since(one)
        if spec is not None and since is not None and one.slot_pod is not None and one.slot_pod.serving:
            moments.append(since + spec.hold_seconds)
        moments += [pod.created + ADMISSION_PAUSE for pod in one.engines if pod.terminal]
    later = [moment - now for moment in moments if moment > now]
    return min(later) + 0.05 if later else None


def plan(observed: Observed, images: Images, now: float) -> Plan:
    """The next step. An object that is being deleted, or whose spec makes no sense, is left alone."""
    facts = facts_of(observed)
    if observed.deleting or observed.spec is None:
        return Plan(step=None, facts=facts)
    wanted = revision_of(observed.spec.part)
    memory = observed.spec.memory
    good = tuple(one for one in facts if not one.lost and one.slot.spec.capacity == memory)
    others = tuple(one for one in facts if one not in good)
    rollout = rollout_of(observed, good, wanted, now)
    step = next(_steps(observed, good, others, rollout, images, now), None)
    return Plan(step=step, facts=facts, rollout=rollout, requeue_after=_requeue(observed, facts, rollout, now))
