"""What is true of a LingDeployment, as its status says it. Pure: what was observed and planned in, a status out.

A condition keeps its time while its `status` does, so the status changes only when something did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.slotstatus import Condition
from ling_operator.refusals import to_status
from ling_operator.rollout import COMPLETE
from ling_operator.speed import slo_met, suspicions
from ling_operator.stage import stages
from ling_operator.verdicts import Verdict, gpu_allocated, standby_ready
from ling_operator.views import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ling_operator.plan import Plan
    from ling_operator.rollout import Rollout
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.views import Observed

BRIEF: Final = 50  # characters of the message in a column: 160 are all that a terminal has
ON_THE_WAY: Final = ("Starting", "Updating")  # reasons of Progressing under which slots get a revision
CRASH_LOOP_DEATHS: Final = 5  # server deaths without a first token, as the agent counts them


def _ready(observed: Observed, slots: Sequence[SlotFacts]) -> Verdict:
    facts = [one for one in slots if not one.slot.spec.spare]
    replicas = observed.spec.replicas if observed.spec else len(facts)
    serving = [one for one in facts if one.serving]
    if serving:
        return names.READY, True, "Serving", f"{len(serving)} of {replicas} slots serve"
    if any(one.held and one.slot_pod is not None and one.slot_pod.serving for one in facts):
        return names.READY, True, "Holding", "requests wait for an engine that is coming"
    if replicas == 0:
        return names.READY, False, "ScaledToZero", "no slots are wanted (replicas: 0)"
    said = next((f"{one.name}: {text}" for one in facts if (text := one.message())), "no slot serves yet")
    return names.READY, False, "NotServing", said


def _progressing(observed: Observed, plan: Plan) -> Verdict:
    """How the rollout stands; with what is said of slots that find no room."""
    kind, true, reason, message = _rolling(observed, plan.rollout)
    step = stages(plan.facts, plan.rollout.wanted) if plan.rollout is not None and reason in ON_THE_WAY else ""
    message = f"{step}; {message}" if step else message
    said = plan.placement.said if plan.placement is not None else ""
    return kind, true, reason, f"{message}; {said}" if said and true else message


def _rolling(observed: Observed, rollout: Rollout | None) -> Verdict:
    if rollout is None:
        reason, message = "InvalidSpec", observed.complaint or "the object is being deleted"
        return names.PROGRESSING, False, reason if observed.complaint else "Deleting", message
    if rollout.given_up:
        return names.PROGRESSING, False, rollout.given_up, rollout.why
    if rollout.paused:
        message = f"revision {rollout.wanted} waits; take rollout.paused away to go on"
        return names.PROGRESSING, False, "Paused", message
    if rollout.complete:
        return names.PROGRESSING, True, COMPLETE, f"all slots run revision {rollout.wanted}"
    current = observed.previous.current_revision
    if not current:
        return names.PROGRESSING, True, "Starting", f"the first slots of revision {rollout.wanted} are being made"
    if current != rollout.wanted:
        return names.PROGRESSING, True, "Updating", f"revision {current} is being replaced by {rollout.wanted}"
    return names.PROGRESSING, True, "Scaling", "slots are being made, replaced or taken away"


def _update(facts: Sequence[SlotFacts], rollout: Rollout | None) -> Verdict:
    running = sorted({pod.revision for one in facts for pod in one.engines if not pod.terminal})
    if len(running) > 1:
        message = f"revisions {', '.join(running)} run side by side"
        return names.UPDATE_IN_PROGRESS, True, "RevisionsCoexist", message
    old = [one.name for one in facts if rollout is not None and one.old_engines(rollout.wanted)]
    if old and rollout is not None and not rollout.given_up:
        return names.UPDATE_IN_PROGRESS, True, "SlotsWait", f"{', '.join(old)}: not yet at revision {rollout.wanted}"
    return names.UPDATE_IN_PROGRESS, False, "OneRevision", "one revision runs" if running else "no engine runs"


def _cached(facts: Sequence[SlotFacts], policy: str) -> Verdict | None:
    if policy == "Off":
        return None
    without = [one for one in facts if not one.slot.status.is_true(names.WEIGHTS_HELD)]
    if not facts:
        return names.WEIGHTS_CACHED, False, "NoSlots", "no slot holds weights"
    if not without:
        return names.WEIGHTS_CACHED, True, "Held", "every slot holds sealed weights"
    condition = without[0].slot.status.condition(names.WEIGHTS_HELD)
    said = condition.message if condition is not None and condition.message else "no sealed weights yet"
    return names.WEIGHTS_CACHED, False, "NotHeld", f"{without[0].name}: {said}"


def _complaints(observed: Observed, plan: Plan) -> Iterator[tuple[str, str]]:
    facts = plan.facts
    if observed.complaint:
        yield "InvalidSpec", observed.complaint
    if observed.service_taken:
        yield "ServiceNameTaken", f"Service {observed.name} belongs to somebody else; delete it, or rename this object"
    yield from ((one.reason, one.message) for one in plan.refused)
    for one in facts:
        if one.agent is False:
            yield "AgentLost", f"{one.name}: its node has no ready agent; what serves goes on, nothing new starts"
        for pod in one.live_engines:
            said = one.reported(pod)
            if said is not None and said.deaths >= CRASH_LOOP_DEATHS:
                yield (
                    "EngineCrashLoop",
                    f"{pod.name}: {said.deaths} deaths without a first token: {said.last_exit or '?'}",
                )
        said_ill = one.slot.status.condition(names.DEGRADED)
        if said_ill is not None and said_ill.true:
            yield said_ill.reason, f"{one.name}: {said_ill.message}"
        if one.slot.status.is_true(names.WEIGHTS_HELD) and not one.held and not one.slot.spec.spare:
            yield "SlotNotServing", f"{one.name}: {one.message() or 'nobody serves'}"
    yield from suspicions(facts, {one.revision: one.part.decoding for one in observed.revisions})


def _degraded(observed: Observed, plan: Plan) -> Verdict:
    found = list(_complaints(observed, plan))
    if not found:
        return names.DEGRADED, False, "AsExpected", "nothing is wrong"
    return names.DEGRADED, True, found[0][0], "; ".join(message for _, message in found)


def conditions_of(
    verdicts: Sequence[Verdict], before: Sequence[Condition], generation: int, now: float
) -> list[Condition]:
    """The verdicts as conditions; one whose `status` did not change keeps its time."""
    old = {one.type: one for one in before}
    found = []
    for kind, true, reason, message in verdicts:
        status, known = "True" if true else "False", old.get(kind)
        same = known is not None and known.status == status and known.last_transition_time
        time = known.last_transition_time if known is not None and same else rfc3339(now)
        found.append(
            Condition(
                type=kind,
                status=status,
                reason=reason,
                message=message[:1024],
                last_transition_time=time,
                observed_generation=generation,
            )
        )
    return found


def _slot_line(facts: SlotFacts) -> dict[str, Any]:
    active = facts.active
    line = {
        "name": facts.name,
        "node": facts.slot.status.node,
        "engine": active.name if active is not None else "",
        "revision": active.revision if active is not None else "",
        "serving": facts.serving,
        "spare": facts.slot.spec.spare or "",
        "leavingSince": rfc3339(facts.leaving_since) if facts.leaving_since else "",
        "message": facts.message(),
    }
    return {key: value for key, value in line.items() if value != ""}


def _performance(facts: Sequence[SlotFacts]) -> dict[str, Any]:
    """The active engines' means, weighed by their requests; nothing when nobody has measured."""
    said = [one.reported(one.active) for one in facts if one.active is not None]
    measured = [one for one in said if one is not None and one.requests and one.ttft_ms is not None]
    requests = sum(one.requests for one in measured)
    if not requests:
        return {}
    figures = {"ttftMs": "ttft_ms", "tpotMs": "tpot_ms", "acceptLength": "accept_length"}
    means = {key: _mean([(getattr(one, name), one.requests) for one in measured]) for key, name in figures.items()}
    told: dict[str, Any] = {key: round(mean, 3) for key, mean in means.items() if mean is not None}
    if means["tpotMs"]:
        told["tokensPerSecond"] = round(1000 / means["tpotMs"], 1)
    if samples := sum(one.samples for one in measured):
        told |= {"samples": samples, "windowSeconds": max(one.window_seconds for one in measured)}
    return {"requests": requests, **told}


def _mean(weighed: Sequence[tuple[float | None, int]]) -> float | None:
    """Of the values that somebody measured, each as often as its weight; None when nobody has."""
    known = [(value, weight) for value, weight in weighed if value is not None]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _message(conditions: Mapping[str, Condition]) -> str:
    """The one line that a person should read first."""
    ready, degraded, progressing = (conditions[kind] for kind in (names.READY, names.DEGRADED, names.PROGRESSING))
    if not progressing.true:
        return progressing.message
    if degraded.true:
        return degraded.message
    if progressing.reason == COMPLETE or not ready.true:
        return ready.message
    return progressing.message


def brief(message: str) -> str:
    """As much of it as a line of `kubectl get ld -o wide` has room for, cut between words."""
    if len(message) <= BRIEF:
        return message
    return message[: BRIEF - 2].rsplit(" ", 1)[0].rstrip(",;:") + " ..."


def selector(name: str) -> str:
    """What the scale subresource tells: the slot pods."""
    return f"{names.LABEL_DEPLOYMENT}={name},{names.LABEL_COMPONENT}={names.COMPONENT_SLOT}"


def _remembered(observed: Observed, rollout: Rollout | None) -> dict[str, Any]:
    """The revisions, and what the progress deadline counts from."""
    previous = observed.previous
    wanted = rollout.wanted if rollout is not None else previous.update_revision
    current = wanted if rollout is not None and rollout.complete else previous.current_revision
    told: dict[str, Any] = {"updateRevision": wanted, "currentRevision": current}
    progress = rollout.progress if rollout is not None else previous.progress
    if progress is not None:
        told["progress"] = {
            "revision": progress.revision,
            "updated": progress.updated,
            "since": rfc3339(progress.since),
            "started": rfc3339(progress.started),
        }
    return {key: value for key, value in told.items() if value}


def build_status(observed: Observed, plan: Plan, now: float) -> dict[str, Any]:
    """The whole status of the LingDeployment."""
    facts, rollout = plan.facts, plan.rollout
    performance = _performance(facts)
    found = (
        _ready(observed, facts),
        _progressing(observed, plan),
        _update(facts, rollout),
        _cached(facts, observed.spec.part.cache_policy if observed.spec else ""),
        gpu_allocated(facts, observed.spec.part.gpu if observed.spec else None, observed.devices),
        standby_ready(facts),
        slo_met(observed.spec.slo, performance) if observed.spec else None,
        _degraded(observed, plan),
    )
    verdicts = [one for one in found if one is not None]
    conditions = conditions_of(verdicts, observed.previous.conditions, observed.generation, now)
    message = _message({one.type: one for one in conditions})
    serving = sum(one.serving for one in facts)
    spares = sum(one.slot.spec.spare for one in facts)
    wanted = observed.spec.replicas if observed.spec else len(facts)
    status: dict[str, Any] = {
        "observedGeneration": observed.generation,
        "replicas": len(facts) - spares,
        "spareSlots": spares,
        "wantedReplicas": wanted,
        "readyReplicas": serving,
        "updatedReplicas": sum(one.updated(rollout.wanted) for one in facts) if rollout else 0,
        "serving": f"{serving}/{wanted}",
        "selector": selector(observed.name),
        "message": message,
        "brief": brief(message),
        "slots": [_slot_line(one) for one in facts],
        "conditions": [one.to_dict() for one in conditions],
        **_remembered(observed, rollout),
    }
    if plan.refused:
        status["refused"] = to_status(plan.refused)
    return {**status, "performance": performance} if performance else status


def agent_condition(facts: SlotFacts, now: float) -> Condition | None:
    """The slot's condition AgentLost as it should be; None when nothing is to be written."""
    before = facts.slot.status.condition(names.AGENT_LOST)
    if facts.agent is None:
        return None
    lost = not facts.agent
    if before is not None and before.true == lost:
        return None
    return Condition(
        type=names.AGENT_LOST,
        status="True" if lost else "False",
        reason="NoReadyAgent" if lost else "AgentReady",
        message="no agent on the node is ready; this status may be old" if lost else "",
        last_transition_time=rfc3339(now),
    )
