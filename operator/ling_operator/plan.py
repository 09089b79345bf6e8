"""The one decision of the operator: from what is observed, the next step and what is true. Pure.

One step at a time, nothing remembered: whatever was done is seen in the next look, so a crash between any two steps
costs nothing. Order: revision, service, budgets, labels, slots that go, each slot's own step, slots that are missing,
old revisions. docs/rollout.md tells it for people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.engine import SGLANG
from ling_api.v1alpha1 import RECREATE, LingDeploymentSpec, LingSlotSpec, revision_of
from ling_operator import builders
from ling_operator.actions import Apply, Create, Delete, Label, Step, describe
from ling_operator.placement import NO_ROOM_AFTER, STARVED_AFTER, Aim, Placement, Standing, place
from ling_operator.refusals import still_due
from ling_operator.rollout import Rollout, deadline_of, rollout_of, targets_of
from ling_operator.slotfacts import SlotFacts, facts_of
from ling_operator.slotsteps import ADMISSION_PAUSE, Task, label_steps, slot_steps
from ling_operator.surroundings import owner_uid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from ling_api.enginepart import EnginePart
    from ling_operator.refusals import Refusal
    from ling_operator.settings import Images
    from ling_operator.views import Observed, RevisionView

REVISIONS_KEPT: Final = 5  # ControllerRevisions that nobody uses any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now (nothing, if `step` is None), what is true, and when to look again if nothing happens.

    `slot` is the one that the step concerns, "" when it concerns none. `refused` is what the API server would not do
    before and what is still to be done.
    """

    step: Step | None
    slot: str = ""
    facts: tuple[SlotFacts, ...] = ()
    rollout: Rollout | None = None
    placement: Placement | None = None
    refused: tuple[Refusal, ...] = ()
    requeue_after: float | None = None


def _revision_steps(observed: Observed, wanted: str, images: Images) -> Iterator[Step]:
    if any(one.revision == wanted for one in observed.revisions) or observed.spec is None:
        return
    part = observed.spec.part
    number = max((one.number for one in observed.revisions), default=0) + 1
    body = builders.build_revision(observed, wanted, number, part, part.engine.image or images.of(part.engine.runtime))
    yield Create(kind="ControllerRevision", body=body, why=f"revision {wanted} is new")


def contains(live: Any, wanted: Any) -> bool:
    """Whether `live` has all that `wanted` says.

    A list of objects may hold more: server-side apply keeps the items of others, as a port or an owner. Any other list
    is to be the same.
    """
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contains(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list) and wanted and all(isinstance(one, dict) for one in wanted):
        return isinstance(live, list) and all(any(contains(item, one) for item in live) for one in wanted)
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


def _budget_steps(observed: Observed, replicas: int) -> Iterator[Step]:
    for component in (names.COMPONENT_SLOT, names.COMPONENT_ENGINE):
        body = builders.build_budget(observed, component, replicas)
        live = observed.budgets.get(body["metadata"]["name"])
        if live is None:
            yield Apply(kind="PodDisruptionBudget", body=body, why="the budget is missing")
        elif owner_uid(live["metadata"]) == observed.uid and not contains(live, body):
            body["metadata"]["uid"] = live["metadata"]["uid"]
            yield Apply(kind="PodDisruptionBudget", body=body, why=f"{replicas} slots are wanted")


def _leave(observed: Observed, facts: SlotFacts, why: str) -> Step:
    """Out of the Service first, then a lame duck; then the slot, which stays visible until its pods have drained."""
    pod = facts.slot_pod
    if pod is not None and not pod.terminal and pod.serving:
        return Label(kind="Pod", name=pod.name, uid=pod.uid, label=names.LABEL_SERVING, value=None, why=why)
    if not facts.slot.spec.leaving:
        body = builders.build_slot(observed, facts.name, replace(facts.slot.spec, leaving=True))
        body["metadata"]["uid"] = facts.slot.uid
        return Apply(kind="LingSlot", body=body, why=why)
    return Delete(kind="LingSlot", name=facts.name, uid=facts.slot.uid, foreground=True, why=why)


def _new_slot(observed: Observed, spec: LingDeploymentSpec, aim: Aim, revision: str, *, spare: bool) -> Create:
    """A slot of the lowest number for which no slot, claim or pod exists, terminating ones included."""
    taken = {one.name for one in observed.slots} | {one.slot for one in observed.pods}
    taken |= {one.name for one in observed.claims}
    number = next(n for n in range(len(taken) + 1) if f"{observed.name}-{n}" not in taken)
    name = f"{observed.name}-{number}"
    wanted = LingSlotSpec(
        deployment=observed.name,
        revision=revision,
        revisions=(revision,),
        capacity=aim.memory,
        gpu=aim.gpu,
        place=aim.place,
        grace_seconds=spec.grace_seconds,
        hold_seconds=spec.hold_seconds,
        lame_duck_seconds=spec.lame_duck_seconds,
        replacement_timeout_seconds=spec.replacement_timeout_seconds,
        standby=spec.standby,
        spare=spare,
    )
    why = f"{spec.spare_slots} spare slots are wanted" if spare else f"{spec.replicas} slots are wanted"
    return Create(kind="LingSlot", body=builders.build_slot(observed, name, wanted), why=why)


def _missing_steps(
    observed: Observed, spec: LingDeploymentSpec, placed: Placement, aim: Aim, revision: str
) -> Iterator[Apply | Create]:
    if not revision:
        return
    spare = placed.promote
    if spare is not None:
        body = builders.build_slot(observed, spare.name, replace(spare.slot.spec, spare=False))
        body["metadata"]["uid"] = spare.slot.uid
        yield Apply(kind="LingSlot", body=body, why="a spare slot serves instead of a new one")
    elif placed.missing:
        yield _new_slot(observed, spec, aim, revision, spare=False)
    elif placed.missing_spares and all(one.serving for one in placed.good):
        yield _new_slot(observed, spec, aim, revision, spare=True)


def _old_revisions(observed: Observed, facts: Sequence[SlotFacts], wanted: str) -> Iterator[Step]:
    used = {wanted, observed.previous.current_revision}
    used |= {revision for one in facts for revision in one.slot.spec.revisions}
    used |= {pod.revision for pod in observed.pods}
    unused: list[RevisionView] = [one for one in observed.revisions if one.owned and one.revision not in used]
    for one in sorted(unused, key=lambda view: -view.number)[REVISIONS_KEPT:]:
        yield Delete(kind="ControllerRevision", name=one.name, uid=one.uid, why="nobody uses it any more")


def _memory(observed: Observed, spec: LingDeploymentSpec, revision: str, part: EnginePart) -> int:
    """Of a slot. When an edit of the runtime was given up, the slots of the revision that goes on know theirs."""
    if part.engine.runtime == SGLANG:
        return 0
    known = [slot.spec.capacity for slot in observed.slots if slot.spec.revision == revision]
    return spec.memory or max(known, default=0)


def aim_of(observed: Observed, spec: LingDeploymentSpec, rollout: Rollout) -> Aim:
    """What a good slot is like: of the wanted revision's shape, or of the one that is gone on with."""
    revision = rollout.new_slots or rollout.wanted
    known = next((one.part for one in observed.revisions if one.owned and one.revision == revision), spec.part)
    part = spec.part if revision == rollout.wanted else known
    recreate = spec.strategy == RECREATE and not rollout.paused and not part.gpu.plugged
    place = part.engine.pod_template.place
    only = revision if recreate else ""
    memory = _memory(observed, spec, revision, part)
    return Aim(memory=memory, gpu=part.gpu, place=place, only=only, revision=revision, part=part)


def _trying(task: Task, one: SlotFacts, placed: Placement, aim: Aim) -> Task:
    """The task with what is to be tried first, where an engine must be stopped before the next one can start."""
    if one is placed.first:
        return replace(task, trying=aim.revision, may_stop=False)
    if one.slot.spec.gpu.plugged and not one.updated(task.target):
        stops = one.active is not None and task.target == aim.revision
        return replace(task, trying=task.target, may_stop=not stops or aim.tried(one))
    return task


def _tasks(
    rollout: Rollout, placed: Placement, facts: Sequence[SlotFacts], aim: Aim
) -> Iterator[tuple[SlotFacts, Task]]:
    """What is asked of each slot that stays; the good ones first."""
    # a starved slot may serve, and what it serves may be wanted again: after a revert, or a revision that was given up
    starved = [one for one in placed.others if placed.standings[one.name] is Standing.STARVED]
    targets = targets_of([*placed.good, *(one for one in starved if one.name not in placed.gone)], rollout)
    serving = {one.name for one in facts if one.reachable}
    for one in (*placed.good, *placed.others, *placed.spares):
        if one.name not in placed.gone:
            target = targets.get(one.name, one.slot.spec.revision)
            if one.slot.spec.spare:
                target = rollout.new_slots or target
            others = bool(serving - {one.name})
            standing = placed.standings[one.name]
            task = Task(target=target, standing=standing, paused=rollout.paused, others_serve=others)
            yield one, _trying(task, one, placed, aim)


def _steps(
    observed: Observed,
    spec: LingDeploymentSpec,
    facts: Sequence[SlotFacts],
    rollout: Rollout,
    placed: Placement,
    images: Images,
    now: float,
) -> Iterator[tuple[str, Step]]:
    """All that is due, each with the slot that it concerns. The labels come before what the API server may refuse."""
    aim = aim_of(observed, spec, rollout)
    tasks = tuple(_tasks(rollout, placed, facts, aim))
    yield from (("", step) for step in _revision_steps(observed, rollout.wanted, images))
    yield from (("", step) for step in _service_steps(observed))
    yield from (("", step) for step in _budget_steps(observed, spec.replicas))
    for one, task in tasks:
        yield from ((one.name, step) for step in label_steps(one, spec.hold_seconds, task.others_serve, now))
    yield from ((one.name, _leave(observed, one, why)) for one, why in placed.goes)
    for one, task in tasks:
        yield from ((one.name, step) for step in slot_steps(observed, one, task, images, now))
    for made in _missing_steps(observed, spec, placed, aim, rollout.new_slots):
        yield made.body["metadata"]["name"], made
    yield from (("", step) for step in _old_revisions(observed, facts, rollout.wanted))


def _moments(
    observed: Observed, spec: LingDeploymentSpec, facts: Sequence[SlotFacts], rollout: Rollout
) -> Iterator[float]:
    """When time alone changes something, in seconds since the epoch; those that have passed too."""
    if rollout.progress is not None and not rollout.given_up:
        yield deadline_of(observed, rollout.progress, spec.progress_deadline_seconds)
    for one in facts:
        since = one.unserved_since
        if since is not None and one.slot_pod is not None and one.slot_pod.serving:
            yield since + spec.hold_seconds
        if one.leaving:
            yield one.leaving_since + spec.replacement_timeout_seconds
            if since is not None:
                yield since + spec.hold_seconds
        for pod in one.pods:
            if pod.terminal:
                yield pod.created + ADMISSION_PAUSE
            if pod.waits_since:
                yield pod.waits_since + NO_ROOM_AFTER
                yield pod.waits_since + STARVED_AFTER


def plan(observed: Observed, images: Images, now: float, refused: AbstractSet[str] = frozenset()) -> Plan:
    """The next step. An object that is being deleted, or whose spec makes no sense, is left alone.

    `refused` names slots that wait, since the API server refused a step of theirs, and steps of no slot that it refused
    (as `describe` has them): the step is another one.
    """
    facts, spec = facts_of(observed), observed.spec
    if observed.deleting or spec is None:
        return Plan(step=None, facts=facts)
    rollout = rollout_of(observed, facts, revision_of(spec.part), now)
    placed = place(observed, spec, facts, aim_of(observed, spec, rollout), now)
    steps: Iterable[tuple[str, Step]] = _steps(observed, spec, facts, rollout, placed, images, now)
    standing: tuple[Refusal, ...] = ()
    if observed.previous.refused:  # seldom; to know which still stand, all steps must be known
        steps = list(steps)
        standing = still_due(observed.previous.refused, {describe(one) for _, one in steps})
        words = {one.slot: one.sentence for one in reversed(standing)}
        facts = tuple(replace(one, refused=words.get(one.name, "")) for one in facts)
    open_ = (one for one in steps if not refused or not refused & {one[0], describe(one[1])})
    slot, step = next(open_, ("", None))
    later = [moment - now for moment in _moments(observed, spec, facts, rollout) if moment > now]
    return Plan(
        step=step,
        slot=slot,
        facts=facts,
        rollout=rollout,
        placement=placed,
        refused=standing,
        requeue_after=min(later) + 0.05 if later else None,
    )
