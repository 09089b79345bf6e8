"""`kubectl ling explain`: why a LingDeployment is not Ready, or not as asked, in sentences. Pure.

One chain is followed for each slot, in the order in which things come to be, and it ends at the first link that is not
there: slot pod, its node, the agent, engine pod, server, weights, acceptor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names

from .seen import EXITS, amount, seconds, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .seen import Pod, Seen, SlotSeen

HINTS: Final = {  # what the scheduler says: what to do
    "Insufficient memory": "lower weightCache.memory or engine.resources, or free a node",
    f"Insufficient {names.RESOURCE}": "no node agent offers its device there: kubectl get pods -n ling-agents -o wide",
    "untolerated taint": "its nodes are tainted: name the taint in engine.podTemplate.spec.tolerations",
    "cannot allocate all claims": "no node has that many free GPUs of the device class",
    "resourceclaim": "the claim is not allocated: kubectl describe resourceclaim",
}
TOLD: Final = ("InvalidSpec", "Deleting", "Paused")  # reasons of Progressing=False that are no revision given up
IMAGE_WAITS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})


def explain(seen: Seen) -> list[str]:
    """One sentence a line, the most important first."""
    lines = [_ready(seen), *_spec(seen), *_change(seen)]
    for slot in seen.slots:
        why = _slot(slot)
        if why:
            lines.append(f"{slot.name}: {why}")
    lines += _rest(seen)
    warned = [one for one in seen.events if one.get("type") == "Warning"]
    if warned and not seen.is_true(names.READY):
        last = max(warned, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
        lines.append(f"The last warning, about {last['involvedObject']['name']}: {last['reason']}: {last['message']}")
    return lines


def _ready(seen: Seen) -> str:
    ready = seen.conditions.get(names.READY)
    if ready is None:
        return (
            f"{seen.name} was not looked at by the operator yet: is it running? "
            "kubectl -n ling-system get deployment ling-operator"
        )
    since = seconds(ready.last_transition_time)
    age = f", for {span(seen.now - since)}" if since is not None else ""
    if ready.true:
        return f"{seen.name} answers requests ({ready.message}){age}."
    if ready.reason == "ScaledToZero":
        return f"{seen.name} is scaled to zero{age}: kubectl scale ld/{seen.name} --replicas=1"
    return f"{seen.name} answers nobody{age}: {ready.message}."


def _spec(seen: Seen) -> Iterator[str]:
    if (seen.status.get("observedGeneration") or 0) < seen.body["metadata"].get("generation", 0):
        yield "The operator has not seen the last edit yet; what is said below is about the one before."
    progressing = seen.conditions.get(names.PROGRESSING)
    if progressing is not None and progressing.reason == "InvalidSpec":
        yield f"Its spec is not understood: {progressing.message}."


def _change(seen: Seen) -> Iterator[str]:
    progressing, update = seen.conditions.get(names.PROGRESSING), seen.conditions.get(names.UPDATE_IN_PROGRESS)
    if progressing is not None and not progressing.true and progressing.reason not in TOLD:
        yield f"The last change was given up ({progressing.reason}): {progressing.message}."
        yield f"To go back: kubectl ling rollback {seen.name}; or edit it, any edit starts anew."
    elif update is not None and update.true:
        started = seconds((seen.status.get("progress") or {}).get("started"))
        age = f" since {span(seen.now - started)}" if started is not None else ""
        yield f"A change is on its way{age}: {update.message}."
    if (seen.spec.get("rollout") or {}).get("paused"):
        yield "Its rollout is paused (rollout.paused): edits wait."


def _slot(slot: SlotSeen) -> str:
    if slot.serving:
        return ""
    return _slot_pod(slot) or _agent(slot) or _engines(slot) or _serving(slot)


def _slot_pod(slot: SlotSeen) -> str:
    pod = slot.slot_pod
    if pod is None:
        return "its slot pod is not made yet."
    if pod.leaving:
        return "its slot pod is leaving."
    return _pod(pod, "slot pod")


def _pod(pod: Pod, what: str) -> str:
    """Why a pod does not run, "" when it does."""
    if pod.unschedulable:
        hint = next((text for words, text in HINTS.items() if words in pod.unschedulable), "")
        return f"no node takes {what} {pod.name}: {pod.unschedulable}" + (f" ({hint})." if hint else ".")
    reason, message = pod.waiting
    if reason in IMAGE_WAITS:
        return f"the image of {what} {pod.name} cannot be had ({reason}): {message}."
    if reason:
        return f"{what} {pod.name} is in {reason}{_last_words(pod)}."
    if pod.status.get("phase") == "Failed":
        return f"{what} {pod.name} failed: {pod.status.get('reason') or ''} {pod.status.get('message') or ''}."
    if not pod.node:
        return f"{what} {pod.name} waits for the scheduler."
    if pod.status.get("phase") == "Pending":
        return f"{what} {pod.name} is being started by the kubelet of {pod.node}."
    return ""


def _last_words(pod: Pod) -> str:
    ended = pod.last_exit
    if ended is None:
        return ""
    code, words = ended
    meaning = EXITS.get(code, "")
    return f"; it ended with {code}" + (f" ({meaning})" if meaning else "") + (f": {words}" if words else "")


def _agent(slot: SlotSeen) -> str:
    lost = slot.status.condition(names.AGENT_LOST)
    if lost is not None and lost.true:
        return (
            f"no agent on node {slot.status.node} is ready, so nothing new starts there: "
            f"kubectl get pods -n ling-agents --field-selector spec.nodeName={slot.status.node}"
        )
    if slot.status.is_true(names.RECOVERING):
        return "its agent has just started and waits until all pods of the slot have told their roles (at most 10 s)."
    if slot.status.active is None:
        return "the agent of its node has not reported yet."
    return ""


def _engines(slot: SlotSeen) -> str:
    live = [pod for pod in slot.engine_pods if not pod.leaving]
    if not live:
        return "it has no engine pod yet."
    troubles = [trouble for pod in live if (trouble := _pod(pod, "engine pod"))]
    if len(troubles) == len(live):
        return troubles[0]
    looping = [one for one in slot.status.engines if one.deaths]
    if looping:
        worst = max(looping, key=lambda one: one.deaths)
        meaning = next((f" ({text})" for code, text in EXITS.items() if str(code) == worst.last_exit), "")
        return (
            f"servers of {worst.pod} died {worst.deaths} times in a row without a first token, the last with "
            f"exit {worst.last_exit}{meaning}: kubectl logs {worst.pod} --previous."
        )
    return ""


def _serving(slot: SlotSeen) -> str:
    filling = [one for one in slot.status.weight_sets if one.state == "filling"]
    if filling:
        least = min(filling, key=lambda one: one.progress or 0)
        return f"weights are being read: {least.progress or 0:.0%} of {amount(least.bytes)} ({least.role})."
    if slot.status.message:
        return f"{slot.status.message}."
    starting = [one for one in slot.status.engines if one.phase not in ("", "exited", "gated", "draining")]
    if starting:
        return f"the server of {starting[0].pod} is starting (last step: {starting[0].phase})."
    return "an engine is connected and waits for the agent's go."


def _rest(seen: Seen) -> Iterator[str]:
    degraded = seen.conditions.get(names.DEGRADED)
    if degraded is not None and degraded.true and degraded.reason != "InvalidSpec":
        yield f"Degraded ({degraded.reason}): {degraded.message}."
    for kind, text in (("StandbyReady", "No standby could take over"), ("SLOMet", "It is slower than its slo")):
        found = seen.conditions.get(kind)
        if found is not None and not found.true:
            yield f"{text} ({found.reason}): {found.message}."
