"""The rules of roles, in order: who must stop, who is promoted, who is let go, who must drain.

Promote first, demote after: two that accept are harmless, none is not. A wish is obeyed while its term is the slot's;
it is reached by facts alone, so a new agent goes on where the old one was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from . import condemned, standby
from . import decisions as do
from .departure import lame
from .facts import Launcher, Phase, Role, SetState, Slot
from .gate import committed, to_drop
from .roles import Cause, moved
from .weights import dropping

if TYPE_CHECKING:
    from collections.abc import Callable

CRASH_LOOP: Final = "EngineCrashLoop"


def decide_roles(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    if slot.recovering or (slot.spec is None and not slot.ending):
        return slot, out
    for rule in RULES:
        slot = rule(slot, now, out)
    return slot, out


def wished(slot: Slot) -> Launcher | None:
    """The launcher of the wished pod, while the wish's term is the slot's."""
    wish = slot.spec.wish if slot.spec else None
    if wish is None or wish.term != slot.term:
        return None
    return next((x for x in slot.launchers.values() if x.pod == wish.pod and x.stream and not x.leaving), None)


def active(slot: Slot) -> Launcher | None:
    """Who serves: of several the one that was promoted last."""
    actives = [each for each in slot.launchers.values() if each.role is Role.ACTIVE]
    return max(actives, key=lambda each: each.term, default=None)


def _stop(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    for each in slot.launchers.values():
        if not each.stream or each.stopped:
            continue
        if each.stop_due and each.server is None:
            code = each.last_exit if each.last_exit and 0 < each.last_exit < 126 else 1
            reason = f"{CRASH_LOOP}: {each.deaths} servers in a row died without a first token"
        elif each.leaving and each.role not in (Role.ACTIVE, Role.DRAINING):
            code, reason = 0, "the pod is leaving and its server serves nobody"
        else:
            continue
        out.append(do.Stop(stream=each.stream, pod=each.pod, exit_code=code, reason=reason))
        slot = slot.put(replace(each, stopped=True))
    return slot


def _promote(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    if slot.ending:
        return slot
    target = wished(slot)
    if target is not None and target.role is Role.WARM:
        return _activate(slot, target, "wished", now, out)
    warm = [x for x in slot.launchers.values() if x.role is Role.WARM and _usable(x)]
    if warm and not _served(slot):
        return _activate(slot, _best(slot, warm), "nobody else is active", now, out)
    return slot


def _activate(slot: Slot, launcher: Launcher, reason: str, now: float, out: list[do.Decision]) -> Slot:
    term = slot.term + 1
    out.append(
        do.SetRole(
            stream=launcher.stream, pod=launcher.pod, role=Role.ACTIVE, term=term, grace_seconds=0.0, reason=reason
        )
    )
    front = slot.front_of(launcher.server.id) if launcher.server is not None else 0
    if front and slot.ranks[front].front:
        out.append(do.Promote(conn=front, term=term))
    launcher = replace(moved(launcher, Cause.PROMOTE), term=term, progress_at=now)
    return replace(slot, term=term, message="").put(launcher)


def _usable(launcher: Launcher, *, serves: bool = True) -> bool:
    ends = launcher.leaving or launcher.stop_due or launcher.stopped
    return launcher.serves is serves and launcher.connected and not ends


def _served(slot: Slot) -> bool:
    """Whether an active engine that stays is there."""
    return any(each.role is Role.ACTIVE and not each.leaving for each in slot.launchers.values())


def _eligible(slot: Slot, launcher: Launcher, now: float, *, serves: bool = True) -> bool:
    """Whether go may be said to it at all."""
    if launcher.role is not Role.GATED or launcher.through or now < launcher.go_at:
        return False
    known = slot.spec is not None and launcher.revision in slot.spec.revisions
    return known and _usable(launcher, serves=serves)


def _best(slot: Slot, candidates: list[Launcher]) -> Launcher:
    """The wished one, then those whose server did not just die, then the wanted revision, then who came first."""
    target, wanted = wished(slot), slot.spec.revision if slot.spec else ""
    return min(candidates, key=lambda x: (x.died, x is not target, x.revision != wanted, x.deaths, x.order))


def _go(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    if slot.ending:
        return slot
    for each in slot.launchers.values():
        if _eligible(slot, each, now, serves=False) and committed(slot, each).fits:
            slot = _let_go(slot, each, "fills once", out)
    candidate = _candidate(slot, now)
    return _stand_by(slot, now, out) if candidate is None else _admit(slot, candidate, now, out)


def _stand_by(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    """Let one more standby go, when somebody serves and nobody is about to take over."""
    serving, target = active(slot), wished(slot)
    if serving is None or not serving.accepting or serving.leaving:
        return slot
    if target is not None and target is not serving and target.role in standby.COMING:
        return slot
    each, sentence = standby.next_to_go(slot, serving, lambda x: _eligible(slot, x, now))
    if each is not None:
        return _let_go(slot, each, "warm standby", out)
    return replace(slot, message=sentence) if sentence else slot


def _candidate(slot: Slot, now: float) -> Launcher | None:
    target = wished(slot)
    if target is not None and _eligible(slot, target, now) and not (target.died and not _served(slot)):
        return target
    coming = any(x.role in (Role.STARTING, Role.WARM) and _usable(x) for x in slot.launchers.values())
    if _served(slot) or coming:
        return None
    gated = [x for x in slot.launchers.values() if _eligible(slot, x, now)]
    return _best(slot, gated) if gated else None


def _let_go(slot: Slot, launcher: Launcher, reason: str, out: list[do.Decision]) -> Slot:
    out.append(do.Go(stream=launcher.stream, pod=launcher.pod, reason=reason))
    return replace(slot, message="").put(moved(launcher, Cause.GO))


def _admit(slot: Slot, candidate: Launcher, now: float, out: list[do.Decision]) -> Slot:
    """Let it go if it fits; else make the room that may be made for it, or say what did not fit."""
    if candidate is wished(slot) and not candidate.died:
        readers = condemned.holders(slot, candidate)
        if readers and to_drop(_without(slot, readers), candidate, now) is not None:
            return _end_readers(slot, candidate, readers, out)
    sum_now = committed(slot, candidate)
    if sum_now.fits:
        return _let_go(slot, candidate, "fits" if candidate is wished(slot) else "nobody is active", out)
    slot = replace(slot, message=f"{candidate.pod} waits: {sum_now.sentence}")
    names = to_drop(slot, candidate, now)
    if names is not None:
        return _make_room(slot, names, candidate)
    others = [x for x in slot.launchers.values() if x.through and x.uid != candidate.uid]
    draining = [x.uid for x in others if x.role is Role.DRAINING or x.role is Role.GATED]
    if to_drop(slot, candidate, now, plans_without=draining) is not None and draining:
        return slot  # the room comes when they have ended
    standbys = standby.may_give_way(slot, candidate, active(slot)) if candidate is wished(slot) else []
    if to_drop(slot, candidate, now, plans_without=[x.uid for x in standbys] + draining) is not None and standbys:
        for each in standbys:
            slot = _drain(slot, each, f"{candidate.pod} takes its place", out)
        return slot
    swaps = [x for x in others if x.role in (Role.ACTIVE, Role.WARM, Role.STARTING) and x.stream]
    worth = (candidate is wished(slot) and not candidate.died) or all(x.leaving for x in swaps)
    if worth and to_drop(_without(slot, others), candidate, now) is not None:
        for each in swaps:
            slot = _drain(slot, each, f"{candidate.pod} takes its place and both do not fit", out)
    return slot


def _end_readers(slot: Slot, candidate: Launcher, readers: list[Launcher], out: list[do.Decision]) -> Slot:
    """A swap: its server could only wait for a set that is filled anew when the last that reads it has ended."""
    reason = f"{candidate.pod} takes its place and needs a set that is condemned"
    for each in readers:
        if each.role in (Role.ACTIVE, Role.WARM, Role.STARTING) and each.stream:
            slot = _drain(slot, each, reason, out)
    names = ", ".join(each.pod for each in readers)
    return replace(slot, message=f"{candidate.pod} waits: {names} must end first, a set that both need is condemned")


def _without(slot: Slot, others: list[Launcher]) -> Slot:
    """The slot as it will be when those servers have ended: nothing of theirs is mapped."""
    for each in others:
        slot = slot.put(replace(each, role=Role.GATED, server=None))
    live = {x.server.id for x in slot.launchers.values() if x.server is not None}
    slot = replace(slot, ranks={conn: rank for conn, rank in slot.ranks.items() if rank.server in live})
    return replace(slot, sets={n: replace(held, attached=held.attached & live) for n, held in slot.sets.items()})


def _make_room(slot: Slot, names: tuple[str, ...], candidate: Launcher) -> Slot:
    for name in names:
        slot = dropping(slot, name, f"{candidate.pod} of revision {candidate.revision} needs the room")
    going = [held.set[:8] for held in slot.sets.values() if held.state is SetState.DROPPING]
    return replace(slot, message=f"{slot.message}; being dropped: {', '.join(going)}") if going else slot


def _drain_rule(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    for uid in tuple(slot.launchers):
        reason = _drain_reason(slot, slot.launchers[uid])
        if reason and slot.launchers[uid].stream:
            slot = _drain(slot, slot.launchers[uid], reason, out)
    return slot


def _drain_reason(slot: Slot, launcher: Launcher) -> str:
    if not launcher.serves or launcher.role not in (Role.STARTING, Role.WARM, Role.ACTIVE):
        return ""
    if slot.ending:
        return "the slot is being given up"
    others = [x for x in slot.launchers.values() if x.uid != launcher.uid]
    if launcher.role is Role.ACTIVE:
        if any(x.accepting and x.term > launcher.term for x in others):
            return "a successor accepts"
        if launcher.leaving and not lame(slot) and not any(_may_follow(slot, x) for x in others):
            return "the pod is leaving and nobody can follow"
        return ""
    spare = launcher.role is Role.WARM and launcher is not wished(slot) and any(x.accepting for x in others)
    if spare and launcher not in standby.kept(slot, active(slot)):
        return "another engine accepts and nobody wishes this one"
    return ""


def _may_follow(slot: Slot, other: Launcher) -> bool:
    """Whether that engine serves, or will, when a leaving one waits for it."""
    if other.role in (Role.STARTING, Role.WARM, Role.ACTIVE):
        return not other.leaving
    return _eligible(slot, other, float("inf")) and not other.died


def _drain(slot: Slot, launcher: Launcher, reason: str, out: list[do.Decision]) -> Slot:
    grace = slot.spec.grace_seconds if slot.spec else 0.0
    out.append(
        do.SetRole(
            stream=launcher.stream,
            pod=launcher.pod,
            role=Role.DRAINING,
            term=slot.term,
            grace_seconds=grace,
            reason=reason,
        )
    )
    return slot.put(moved(launcher, Cause.DRAIN))


RULES: Final[tuple[Callable[[Slot, float, list[do.Decision]], Slot], ...]] = (_stop, _promote, _go, _drain_rule)


def successor(slot: Slot, giver: Launcher | None) -> tuple[str, int] | None:
    """Where idle connections go that `giver` has: ("adopt", rank connection) or ("park", launcher connection).

    To the server that accepts, else to the launcher that will be let go next; None when that is the giver itself.
    """
    heir = active(slot)
    if heir is not None and heir is not giver and heir.accepting and heir.server is not None:
        conn = slot.front_of(heir.server.id)
        if conn:
            return "adopt", conn
    if slot.recovering or slot.ending:
        return None
    gated = [each for each in slot.launchers.values() if _eligible(slot, each, float("inf"))]
    target = _best(slot, gated) if gated else None
    return None if target is None or target is giver else ("park", target.conn)


def phase_of(launcher: Launcher) -> str:
    """The phase for people."""
    if launcher.server is None:
        let_go = Phase.STARTED.value if launcher.role is Role.STARTING else "gated"
        return "stopped" if launcher.stopped else let_go
    return Phase.EXITED.value if launcher.server.dead else launcher.server.phase.value
