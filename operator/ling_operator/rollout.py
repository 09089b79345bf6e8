"""Which revision each slot is to run now: one slot at a time, the newest edit only, and nothing that was given up.

A slot whose turn it is gets the wanted revision. Every other slot keeps what it serves, even if an earlier edit had
begun to change it. Stateless: the turn follows from what is observed, and progress from what the status remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ling_api import names
from ling_operator.placement import Aim
from ling_operator.views import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_operator.slotfacts import SlotFacts
    from ling_operator.views import Observed, PodView

COMPLETE: Final = "Complete"
DEADLINE: Final = "ProgressDeadlineExceeded"
ENGINE_FAILED: Final = "EngineFailed"
GIVEN_UP: Final = (DEADLINE, ENGINE_FAILED)
DEATHS_ALLOWED: Final = 1  # deaths of a wished engine before it served, beyond which its revision is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Where the rollout of the wanted revision stands. `given_up` is the reason, "" while there is hope."""

    wanted: str
    fallback: str  # what a new slot gets when `wanted` is given up or the rollout is paused
    complete: bool
    paused: bool
    given_up: str
    why: str
    progress: Progress | None

    @property
    def new_slots(self) -> str:
        """The revision of a slot that is made now, "" if none may be made."""
        if self.paused:
            return self.fallback
        return self.fallback if self.given_up and self.fallback else self.wanted


def wish_failed(facts: SlotFacts, pod: PodView) -> bool:
    """The agent tried to make this pod active and it died, more often than is to be forgiven."""
    wish, active, said = facts.slot.spec.wish, facts.slot.status.active, facts.reported(pod)
    if wish is None or active is None or said is None or wish.pod != pod.name:
        return False
    return wish.term < active.term and said.deaths > DEATHS_ALLOWED and not said.requests


def failed_check(pod: PodView) -> bool:
    """The check itself said no; a pod that was evicted, or that no kubelet admitted, said nothing."""
    return pod.phase == "Failed" and pod.trouble.startswith("exit ")


def _asked_before(observed: Observed) -> int | None:
    """The number of slots that was wanted when the status was written."""
    return (observed.previous.raw or {}).get("wantedReplicas")


def _complete(observed: Observed, slots: Sequence[SlotFacts], wanted: str, replicas: int) -> bool:
    """All slots run the wanted revision and nothing else; once so, a death or a drain does not undo it."""
    if len(slots) == replicas and all(one.settled(wanted) for one in slots):
        return True
    before = observed.previous.condition(names.PROGRESSING)
    was = before is not None and before.reason == COMPLETE and observed.previous.update_revision == wanted
    calm = all(
        one.slot.spec.revision == wanted and all(pod.revision == wanted for pod in one.live_engines) for one in slots
    )
    return was and calm and _asked_before(observed) == replicas


def _progress(observed: Observed, wanted: str, updated: int, now: float) -> Progress:
    """The old progress while nothing moved, else a new one from now on."""
    old = observed.previous.progress
    if old is None or old.revision != wanted:
        return Progress(revision=wanted, updated=updated, since=now, started=now)
    if updated > old.updated:
        return Progress(revision=wanted, updated=updated, since=now, started=old.started)
    return old


def _reason(slots: Sequence[SlotFacts], wanted: str) -> str:
    """Why the wanted revision gets no further: the first complaint of a check, an engine or a slot of it."""
    for check in (one for facts in slots for one in facts.checks):
        if check.revision == wanted and check.trouble:
            return f"{check.name}: {check.trouble}"
    for facts in slots:
        for pod in facts.live_engines:
            said = facts.reported(pod)
            if pod.revision == wanted and not facts.settled(wanted):
                detail = pod.trouble or (said and said.last_exit) or facts.message()
                return f"{pod.name}: {detail or 'it does not become active'}"
    waiting = sorted(
        (one for one in slots if not one.settled(wanted)), key=lambda one: one.slot.spec.revision != wanted
    )
    return f"{waiting[0].name}: {waiting[0].message() or 'it does not serve'}" if waiting else "a slot is missing"


def deadline_of(observed: Observed, progress: Progress, seconds: float) -> float:
    """When a revision that gets no further is given up. Time in which nobody looked does not count against it."""
    return max(progress.since, observed.watched_since) + seconds


def _given_up(
    observed: Observed, slots: Sequence[SlotFacts], progress: Progress, deadline: int, now: float
) -> tuple[str, str]:
    """Reason and sentence when the wanted revision is given up. Once given up it stays so until the next edit."""
    wanted = progress.revision
    before = observed.previous.condition(names.PROGRESSING)
    if before is not None and before.reason in GIVEN_UP and observed.previous.update_revision == wanted:
        return before.reason, before.message
    for pod in (pod for facts in slots for pod in facts.checks):
        if pod.revision == wanted and failed_check(pod):
            return ENGINE_FAILED, f"revision {wanted} is given up: its check says {pod.trouble}; edit it to try again"
    for facts in slots:
        for pod in facts.live_engines:
            if pod.revision == wanted and wish_failed(facts, pod):
                return (
                    ENGINE_FAILED,
                    f"revision {wanted} is given up: {_reason((facts,), wanted)}; edit it to try again",
                )
    if now < deadline_of(observed, progress, deadline):
        return "", ""
    return (
        DEADLINE,
        f"revision {wanted} got no further for {deadline} s: {_reason(slots, wanted)}; edit it to try again",
    )


def _serves(facts: SlotFacts) -> str:
    """What a slot goes on with while it is not its turn."""
    active = facts.active
    return active.revision if active is not None and active.live else facts.slot.spec.revision


def _given_up_target(facts: SlotFacts, wanted: str, fallback: str) -> str:
    previous = facts.previous(wanted)
    if facts.updated(wanted):
        return wanted
    if previous is not None:
        return previous.revision
    return fallback if facts.slot.spec.revision == wanted and fallback else facts.slot.spec.revision


def targets_of(slots: Sequence[SlotFacts], rollout: Rollout) -> dict[str, str]:
    """The revision of each slot that may be changed. At most one slot that serves is being changed at any time."""
    wanted = rollout.wanted
    if rollout.paused:
        return {one.name: one.slot.spec.revision for one in slots}
    if rollout.given_up:
        return {one.name: _given_up_target(one, wanted, rollout.fallback) for one in slots}
    targets = {one.name: wanted if one.slot.spec.revision == wanted else _serves(one) for one in slots}
    begun = [one for one in slots if one.slot.spec.revision == wanted and not one.settled(wanted) and one.placed]
    waiting = [one for one in slots if one.slot.spec.revision != wanted]
    if not begun and waiting:
        turn = min(waiting, key=lambda one: (one.serving, len(one.live_engines) < 2, one.slot.number))
        targets[turn.name] = wanted
    return targets


def rollout_of(observed: Observed, facts: Sequence[SlotFacts], wanted: str, now: float) -> Rollout:
    """Where the rollout stands. `facts` are all slots; those that serve nobody yet do not count."""
    spec = observed.spec
    assert spec is not None  # noqa: S101 - a plan is made of a valid spec only
    slots = [one for one in facts if not one.lost and not one.slot.spec.spare]
    aim = Aim(memory=spec.memory, gpu=spec.part.gpu, place=spec.part.engine.pod_template.place)
    shaped = [one for one in slots if aim.shapes(one.slot.spec)]
    known = {one.revision for one in observed.revisions if one.owned}
    current = observed.previous.current_revision
    complete = len(shaped) == len(slots) and _complete(observed, slots, wanted, spec.replicas)
    paused = spec.paused and current != wanted
    progress = (
        None if complete or paused else _progress(observed, wanted, sum(one.updated(wanted) for one in shaped), now)
    )
    given_up, why = ("", "")
    if progress is not None:
        given_up, why = _given_up(observed, slots, progress, spec.progress_deadline_seconds, now)
    return Rollout(
        wanted=wanted,
        fallback=current if current in known and current != wanted else "",
        complete=complete,
        paused=paused,
        given_up=given_up,
        why=why,
        progress=progress,
    )
