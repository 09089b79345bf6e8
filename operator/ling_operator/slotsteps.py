"""The next step inside one slot: its label, its spec, its claim, its slot pod, its engines, in this order. Pure.

Nothing that serves, or that could take over, is deleted before the target's engine is active. Where the engine pod owns
the GPU (DevicePlugin) that cannot be: there the old engine goes first, and the slot pod follows the engine's node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_api.v1alpha1 import LingDeploymentSpec, LingSlotSpec, Wish
from ling_operator import builders, checkpods, pods
from ling_operator.actions import Apply, Create, Delete, Label, Step
from ling_operator.placement import Standing
from ling_operator.rollout import failed_check, wish_failed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_operator.settings import Images
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.views import Observed, PodView

ADMISSION_PAUSE: Final = 1.0  # seconds that a pod which failed at once is left before the next one is made
CHECKED: Final = ("gated", "warm")  # roles of an engine that could take over
COMING: Final = ("started", "filling", "attached")  # phases of a server that was let go and is not warm yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked of one slot. `others_serve`: clients of the Service are answered without it."""

    target: str
    standing: Standing = Standing.GOOD
    paused: bool = False
    others_serve: bool = False
    trying: str = ""  # the revision that is to pass its check here, "" for none
    may_stop: bool = True  # it has passed, so what runs may go for it


def checked(facts: SlotFacts, target: str) -> list[PodView]:
    """Engines of the target that the agent has heard of and that could take over."""
    return [
        one
        for one in facts.live_engines
        if one.revision == target and (told := facts.reported(one)) is not None and told.role in CHECKED
    ]


def _wish(facts: SlotFacts, task: Task) -> Wish | None:
    """The wish to stand in the slot's spec.

    A checked engine of the target is wished for while another one is active, at the term that is now. A wish that was
    made stays while its pod may still fulfil it.
    """
    active, said, target = facts.active, facts.slot.status.active, task.target
    ready = checked(facts, target)
    other = active is not None and active.revision != target and said is not None
    free = not task.paused and not facts.recovering
    if other and ready and free and said is not None and not wish_failed(facts, ready[0]):
        return Wish(pod=ready[0].name, term=said.term)
    old = facts.slot.spec.wish
    if old is not None and any(one.name == old.pod and one.revision == target for one in facts.live_engines):
        return old
    return None


def wanted_spec(facts: SlotFacts, spec: LingDeploymentSpec, task: Task) -> LingSlotSpec:
    """The slot's spec as it should be: `revisions` names the target and whatever may still run."""
    running = {one.revision for one in (*facts.engines, *facts.fills) if not one.terminal}
    return replace(
        facts.slot.spec,
        revision=task.target,
        revisions=tuple(sorted(running | {task.target})),
        grace_seconds=spec.grace_seconds,
        hold_seconds=spec.hold_seconds,
        lame_duck_seconds=spec.lame_duck_seconds,
        replacement_timeout_seconds=spec.replacement_timeout_seconds,
        standby=spec.standby,
        leaving=False,
        wish=_wish(facts, task),
    )


def _pod_steps(observed: Observed, facts: SlotFacts, images: Images) -> Iterator[Step]:
    """The claim and the slot pod."""
    if facts.slot.spec.gpu.claimed and facts.claim is None and not facts.lost:
        yield Create(kind="ResourceClaim", body=builders.build_claim(observed, facts.slot), why="the slot has no claim")
    pod = facts.slot_pod
    if pod is not None and pod.terminal and not pod.deleting:
        yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why=f"the slot pod failed: {pod.trouble}")
    elif pod is not None and pod.live and not pod.node and pod.avoids - observed.ailing:
        yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why="a node that it avoids is well again")
    elif pod is None and not facts.lost:
        engine_node = next((one.node for one in facts.engines if one.node and not one.terminal), "")
        node = engine_node or (facts.slot.status.node if facts.live_engines else "")
        if node or not facts.slot.spec.gpu.plugged:
            body = pods.build_slot_pod(observed, facts.slot, images, node)
            yield Create(kind="Pod", body=body, why="the slot has no slot pod")


def label_steps(facts: SlotFacts, hold: int, others_serve: bool, now: float) -> Iterator[Step]:
    """Into the Service, or out of it; a spare slot never is in it."""
    pod = facts.slot_pod
    if pod is None or pod.terminal or facts.slot.spec.spare:
        return
    since = facts.unserved_since
    too_long = since is not None and now - since >= hold

    def label(value: str | None, why: str) -> Label:
        return Label(kind="Pod", name=pod.name, uid=pod.uid, label=names.LABEL_SERVING, value=value, why=why)

    if facts.serving and pod.live and not pod.serving:
        yield label("true", "the slot serves")
    elif pod.serving and others_serve and not pod.live:
        yield label(None, "the slot pod ends, others serve")
    elif pod.serving and others_serve and not facts.alive:
        yield label(None, "its node is dead, others serve")
    elif pod.serving and others_serve and too_long:
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


def _enough(facts: SlotFacts, target: str, standing: Standing) -> int:
    """How many engines of the target there are to be now: standbys once it serves, and none on a node that leaves."""
    alone = standing is not Standing.GOOD or not facts.updated(target)
    return 1 if alone else 1 + facts.slot.spec.standby.replicas


def _room(facts: SlotFacts, target: str) -> str | None:
    """The node of the next engine pod, "" for any; None while it must wait."""
    pod = facts.slot_pod
    if facts.slot.spec.gpu.plugged:
        if any(one.revision != target and not one.terminal for one in facts.engines):
            return None  # the old engine has the GPU
        if pod is None:
            return ""
    return pod.node or None if pod is not None and pod.live else None


def _made(observed: Observed, facts: SlotFacts, task: Task, now: float) -> Iterator[Step]:
    """The next engine pod, if one is missing."""
    target = task.target
    known = next((one for one in observed.revisions if one.owned and one.revision == target), None)
    have = sum(one.revision == target for one in facts.live_engines)
    node = _room(facts, target)
    if known is None or node is None or task.standing is Standing.DEAD or _too_soon(facts, target, now):
        return
    if have < _enough(facts, target, task.standing):
        number = free_number(facts, observed, target)
        body = pods.build_engine_pod(observed, facts.slot, node, target, known.part, number)
        yield Create(kind="Pod", body=body, why=f"{have} engines of revision {target}")


def _engine_steps(observed: Observed, facts: SlotFacts, task: Task, now: float) -> Iterator[Step]:
    yield from _made(observed, facts, task, now)
    for pod in facts.live_engines:
        if not pod.node and pod.avoids - observed.ailing:
            yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why="a node that it avoids is well again")
    for pod in facts.engines:
        if pod.terminal and not pod.deleting and now - pod.created >= ADMISSION_PAUSE:
            yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why=f"the engine pod failed: {pod.trouble}")
    for pod in facts.fills:
        if not pod.deleting:
            yield Delete(kind="Pod", name=pod.name, uid=pod.uid, why="the slot is no spare any more")
    yield from _check_steps(observed, facts, task)
    if not facts.recovering:
        for pod, why in _surplus(facts, task, now):
            yield Delete(kind="Pod", name=pod.name, uid=pod.uid, grace=pods.engine_grace(facts.slot.spec), why=why)


def _check_steps(observed: Observed, facts: SlotFacts, task: Task) -> Iterator[Step]:
    """The pod that tries a revision before an engine of this slot is stopped for it."""
    for old in facts.checks:
        if not old.deleting and (old.revision != task.trying or (old.phase == "Failed" and not failed_check(old))):
            yield Delete(kind="Pod", name=old.name, uid=old.uid, why="its check is of no use any more")
    known = next((one for one in observed.revisions if one.owned and one.revision == task.trying), None)
    pod = facts.slot_pod
    if not task.may_stop and not facts.checks and known is not None and pod is not None and pod.live and pod.node:
        body = checkpods.build_check_pod(observed, facts.slot, pod.node, task.trying, known.part)
        yield Create(kind="Pod", body=body, why=f"revision {task.trying} is tried before an engine stops for it")


def _in_the_way(facts: SlotFacts, pod: PodView, now: float) -> bool:
    """It was let go and does not come up, nobody wishes it, and the agent waits for it before it lets another go.

    So a swap whose new server hangs. An engine that only starts again after a death has `hold_seconds` to do so.
    """
    said, since = facts.reported(pod), facts.unserved_since
    if said is None or (said.role, said.phase in COMING) != ("gated", True) or facts.slot.spec.wish is not None:
        return False
    return facts.agent is not False and since is not None and now - since >= facts.slot.spec.hold_seconds


def _surplus(facts: SlotFacts, task: Task, now: float) -> Iterator[tuple[PodView, str]]:
    """Engines that nobody needs any more."""
    target = task.target
    active = facts.active if facts.active is not None and facts.active.live else None
    old = [one for one in facts.live_engines if one.revision != target and one is not active]
    if facts.slot.spec.gpu.plugged and not task.paused:
        old = [one for one in facts.live_engines if one.revision != target] if task.may_stop else []
        yield from ((one, f"revision {target} is wanted, and the engine pod owns the GPU") for one in old)
        return
    successor = bool(checked(facts, target)) or facts.updated(target)
    standby = facts.slot.spec.standby.replicas
    for pod in old:
        if active is not None and active.revision == pod.revision and not successor and standby > 0:
            standby -= 1  # it stands by until there is somebody of the target to do so
        elif active is not None:
            yield pod, f"revision {pod.revision} is neither wanted nor active"
        elif pod.broken or pod.unschedulable:
            yield pod, f"it never ran, and revision {target} is wanted: {pod.trouble}"
        elif successor and _in_the_way(facts, pod, now):
            yield pod, f"it was let go and does not come up, and revision {target} is wanted"
    targets = sorted((one for one in facts.live_engines if one.revision == target), key=lambda one: one is not active)
    for pod in targets[1 + facts.slot.spec.standby.replicas :]:
        yield pod, f"{1 + facts.slot.spec.standby.replicas} engines of a revision are enough"


def spare_steps(
    observed: Observed, facts: SlotFacts, task: Task, images: Images, spec: LingDeploymentSpec
) -> Iterator[Step]:
    """A spare slot: its spec, its pod, and one pod that reads the weights of the target and ends."""
    yield from _spec_steps(observed, facts, spec, task)
    yield from _pod_steps(observed, facts, images)
    pod, target = facts.slot_pod, task.target
    for fill in facts.fills:
        if not fill.deleting and (fill.revision != target or fill.phase == "Failed"):
            yield Delete(kind="Pod", name=fill.name, uid=fill.uid, why="it filled for another revision, or failed")
    known = next((one for one in observed.revisions if one.owned and one.revision == target), None)
    if not facts.fills and known is not None and pod is not None and pod.live and pod.node:
        body = pods.build_fill_pod(observed, facts.slot, pod.node, target, known.part)
        yield Create(kind="Pod", body=body, why="the spare slot's weights are read ahead")


def _spec_steps(observed: Observed, facts: SlotFacts, spec: LingDeploymentSpec, task: Task) -> Iterator[Step]:
    wanted = wanted_spec(facts, spec, task)
    if wanted != facts.slot.spec:
        body = builders.build_slot(observed, facts.name, wanted)
        body["metadata"]["uid"] = facts.slot.uid
        wish = f", wish {wanted.wish.pod}" if wanted.wish is not None else ""
        yield Apply(kind="LingSlot", body=body, why=f"revision {task.target}{wish}")


def slot_steps(observed: Observed, facts: SlotFacts, task: Task, images: Images, now: float) -> Iterator[Step]:
    """What is to be done in this slot but its label, the most urgent first."""
    spec = observed.spec
    if spec is None:
        return
    if facts.slot.spec.spare:
        yield from spare_steps(observed, facts, task, images, spec)
        return
    yield from _spec_steps(observed, facts, spec, task)
    yield from _pod_steps(observed, facts, images)
    yield from _engine_steps(observed, facts, task, now)
