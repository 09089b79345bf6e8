"""LingSlot.status from the facts: what a person and the operator read. Pure; `now` is Unix time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from ling_api import names
from ling_api.errors import BadInput
from ling_api.identity import Identity

from . import choose, condemned, health, standby
from .facts import AGENT, Launcher, Role, SetState, Slot, WeightSet
from .gate import committed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Status = dict[str, Any]
LONGEST_CAPABILITY: Final = 16  # characters that LingSlot.status takes
SHOWN_ROLES = {Role.STARTING: Role.GATED.value}


class Publisher(Protocol):
    """Takes the newest status of a slot: level-triggered, on the agent's loop, without waiting."""

    def publish(self, slot: str, status: Mapping[str, object]) -> None: ...


def build_status(
    slot: Slot, *, node: str, previous: Mapping[str, Any] | None, now: float, monotonic: float = 0.0
) -> Status:
    """The whole status at `now` (Unix time; `monotonic` is the same moment in the facts' time).

    `previous` lends the transition times of conditions that did not change.
    """
    active = choose.active(slot)
    room = committed(slot)
    generation = slot.spec.generation if slot.spec else 0
    old = previous.get("conditions", ()) if previous else ()
    return {
        "node": node,
        "observedGeneration": generation,
        "active": {
            "pod": active.pod if active else "",
            "uid": active.uid if active else "",
            "term": slot.term,
        },
        "engines": [_engine(each) for each in _shown(slot)],
        "weightSets": [_weight_set(each) for each in sorted(slot.sets.values(), key=lambda each: each.set)],
        "listener": bool(slot.listener),
        "gpus": list(slot.gpus),
        "computeCapability": _capability(slot),
        "capacity": {"total": room.capacity, "weights": room.weights, "plans": room.plans},
        "message": _message(slot),
        "conditions": conditions(slot, old, generation, now, monotonic),
    }


def _shown(slot: Slot) -> list[Launcher]:
    """One launcher for each pod name, the newest: a pod that was made again may overlap with its predecessor."""
    newest = {each.pod: each for each in sorted(slot.launchers.values(), key=lambda each: each.order)}
    return list(newest.values())


def _capability(slot: Slot) -> str:
    """Of the GPUs that the slot's newest engine runs on, as its weights' identities have it; "" where there is none."""
    newest = sorted(slot.launchers.values(), key=lambda each: -each.order)
    found = (_capability_in(wanted.identity) for each in newest for wanted in each.weights)
    return next(filter(None, found), "")


@lru_cache(maxsize=256)
def _capability_in(identity: bytes) -> str:
    """The text of the field `device.capability`, if the field `device.type` says cuda."""
    try:
        fields = dict(Identity.from_bytes(identity).fields) if identity else {}
    except BadInput:
        return ""
    found = fields.get("device.capability", "").strip('"')  # quoted, since it could be a number
    return found if fields.get("device.type") == "cuda" and len(found) <= LONGEST_CAPABILITY else ""


def _message(slot: Slot) -> str:
    loops = [each for each in slot.launchers.values() if each.stop_due]
    if loops:
        return f"{choose.CRASH_LOOP}: {loops[0].pod}: {loops[0].deaths} servers in a row died without a first token"
    if slot.released:
        return "released by hand: nothing starts until `ling-nodeagent release --undo`"
    return slot.message or _filled(slot)


def _filled(slot: Slot) -> str:
    """How far the fill is that has come least far; "" while nothing is filled."""
    filling = [held.progress for held in slot.sets.values() if held.state is SetState.FILLING]
    return f"{min(filling):.0%} filled" if filling else ""


def _engine(each: Launcher) -> Status:
    server, seen = each.server, each.performance
    out: Status = {
        "pod": each.pod,
        "uid": each.uid,
        "revision": each.revision,
        "role": SHOWN_ROLES.get(each.role, each.role.value),
        "phase": choose.phase_of(each),
        "phases": {name: round(ms, 1) for name, ms in server.phases.items()} if server else {},
        "planBytes": each.total,
        "plan": dict(each.plan),
        "deaths": each.deaths,
        "requests": seen.requests,
        "inFlight": seen.in_flight,
        "ttftMs": round(seen.ttft_ms, 3),
        "tpotMs": round(seen.tpot_ms, 3),
    }
    if seen.accept_length:
        out["acceptLength"] = round(seen.accept_length, 3)
    if seen.samples:
        out |= {"samples": seen.samples, "windowSeconds": round(seen.window_seconds, 3)}
    if seen.draft_tokens:
        out["draftTokens"] = seen.draft_tokens
    if each.last_exit is not None:
        out["lastExit"] = str(each.last_exit)
    return out


def _weight_set(held: WeightSet) -> Status:
    return {
        "set": held.set,
        "role": held.role,
        "rank": held.rank,
        "bytes": held.nbytes,
        "state": condemned.state_of(held),
        "progress": round(held.progress, 3),
        "holders": len(held.holders),
    }


def conditions(
    slot: Slot, old: Sequence[Mapping[str, Any]], generation: int, now: float, monotonic: float = 0.0
) -> list[Status]:
    """The four conditions that are the agent's; a transition time changes only with the status."""
    before = {each["type"]: each for each in old}
    out = []
    for kind, (true, reason, message) in {
        names.WEIGHTS_HELD: _weights_held(slot),
        names.SERVING: _serving(slot),
        names.RECOVERING: _recovering(slot),
        names.DEGRADED: _degraded(slot, monotonic),
    }.items():
        status = "True" if true else "False"
        earlier = before.get(kind)
        since = earlier["lastTransitionTime"] if earlier and earlier["status"] == status else _rfc3339(now)
        out.append({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": generation,
        })  # fmt: skip
    return out


def _weights_held(slot: Slot) -> tuple[bool, str, str]:
    sealed = [held for held in slot.sets.values() if held.state is SetState.SEALED]
    if sealed:
        copies = min(len(held.holders | {AGENT}) for held in sealed)
        return True, "Sealed", f"{len(sealed)} sealed weight sets, each held by at least {copies} processes"
    if filled := _filled(slot):
        return False, "Filling", filled
    return False, "NothingHeld", "no weight set is held"


def _serving(slot: Slot) -> tuple[bool, str, str]:
    accepting = [each for each in slot.launchers.values() if each.accepting]
    if accepting:
        return True, "Accepting", f"{accepting[0].pod} accepts"
    if any(each.role is Role.STARTING for each in slot.launchers.values()):
        return False, "Starting", "a server is starting; connections wait"
    return False, "NobodyAccepts", _message(slot) or "no engine accepts"


def _degraded(slot: Slot, monotonic: float) -> tuple[bool, str, str]:
    """What is wrong although somebody may serve; a fault is shown for a while, so that it is seen."""
    loops = [each for each in slot.launchers.values() if each.stop_due]
    if loops:
        return True, choose.CRASH_LOOP, _message(slot)
    faults = [each for each in slot.launchers.values() if each.fault and health.shown(each, monotonic)]
    if faults:
        last = max(faults, key=lambda each: each.fault_at)
        return True, last.fault, f"a server of {last.pod} lived and did not work: it was killed"
    if condemned.shown(slot, monotonic):
        return True, condemned.REASON, slot.condemned
    wanting = standby.missing(slot, choose.active(slot))
    if wanting:
        return True, "StandbyMissing", slot.message or f"{wanting} warm standbys are not there yet"
    return False, "NothingWrong", "nothing is known to be wrong"


def _recovering(slot: Slot) -> tuple[bool, str, str]:
    if slot.recovering:
        return True, "AgentStarted", "the agent waits until all pods of the slot have told their roles"
    return False, "Recovered", "all pods of the slot have told their roles, or had the time to"


def _rfc3339(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
