"""The agent's mind for one slot: `reduce` takes an event into the facts, `decide` says what follows from them.

Both are pure: the same facts and the same `now` give the same answer, whoever asks. `decide` runs its parts until
nothing new follows, and says when to ask again if nothing happens meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from . import attach, attention, choose, departure, events, health, listener, presence, roles, turns, weights
from . import decisions as do

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .facts import Slot

REDUCERS: Final[Mapping[type, Callable[[Slot, Any, float], Slot]]] = MappingProxyType({
    events.SpecChanged: presence.spec_changed,
    events.CallersChanged: presence.callers_changed,
    events.KeeperHello: presence.keeper_hello,
    events.LauncherConnected: presence.launcher_connected,
    events.RankConnected: presence.rank_connected,
    events.Has: weights.has,
    events.TermRemembered: presence.term_remembered,
    events.Ready: presence.ready,
    events.Disconnected: presence.disconnected,
    events.PeerDead: presence.peer_dead,
    events.Stored: weights.stored,
    events.ManifestStored: weights.manifest_stored,
    events.StoreFailed: weights.store_failed,
    events.Dropped: weights.dropped,
    events.AgentClosed: weights.agent_closed,
    events.KeeperLeaving: presence.keeper_leaving,
    events.ListenerHeld: listener.held,
    events.NoListener: listener.none,
    events.ListenerAsked: listener.asked,
    events.Deposited: weights.deposited,
    events.Mapped: weights.mapped,
    events.Sealed: weights.sealed,
    events.SealRefused: weights.seal_refused,
    events.LauncherHello: presence.launcher_hello,
    events.StreamGone: presence.stream_gone,
    events.AttachAsked: attach.asked,
    events.ServerChanged: roles.server_changed,
    events.Leaving: roles.leaving,
    events.Performed: roles.performed,
    events.DeathHinted: health.death_hinted,
    events.QueueSeen: health.queue_seen,
    events.HeldUp: attention.held_up,
    events.Released: presence.released,
})  # fmt: skip
SMALL: Final = (turns.decide_turns, departure.decide_hold_back)
ROUNDS: Final = 16  # far more than any chain of consequences is long


def reduce(slot: Slot, event: events.Event, now: float) -> Slot:
    """The facts after `event`."""
    return _noted(slot, REDUCERS[type(event)](slot, event, now), now)


def decide(slot: Slot, now: float) -> tuple[Slot, tuple[do.Decision, ...], float | None]:
    """The facts after the decisions, the decisions in order, and when to decide again at the latest (None: never)."""
    out: list[do.Decision] = []
    for _ in range(ROUNDS):
        before = slot
        slot = _noted(before, _round(slot, now, out), now)
        if slot == before:
            break
    return slot, tuple(out), wake_at(slot, now)


def _round(slot: Slot, now: float, out: list[do.Decision]) -> Slot:
    slot = presence.decide_recovery(slot, now)
    slot = departure.decide_lame_duck(slot, now)
    for part in (presence.decide_welcomes, health.decide_health, choose.decide_roles, attach.decide_answers):
        slot, more = part(slot, now)
        out.extend(more)
    slot = weights.decide_unused(slot, now)
    for part in (weights.decide_sets, listener.decide_listener, listener.decide_word, *SMALL):
        slot, more = part(slot, now)
        out.extend(more)
    return slot


def _noted(before: Slot, after: Slot, now: float) -> Slot:
    """Remembers when somebody last accepted: connections are held from that moment."""
    accepted, accepts = (any(each.accepting for each in slot.launchers.values()) for slot in (before, after))
    return replace(after, accepted_at=now) if accepted and not accepts else after


def wake_at(slot: Slot, now: float) -> float | None:
    """The next moment at which time alone may change a decision."""
    times = [each.go_at for each in slot.launchers.values()]
    times += [each.lost_at + slot.recover_max for each in slot.launchers.values() if not each.stream]
    if slot.recovering:
        times += [slot.since + slot.recover_min, slot.since + slot.recover_max]
    if slot.keeper is not None and slot.keeper.asked_at is not None and not slot.listener:
        times.append(slot.keeper.asked_at + listener.LISTEN_AGAIN)
    times += [*departure.times(slot), *health.times(slot), *turns.times(slot)]
    hold = listener.hold_until(slot)
    if hold is not None:
        times.append(hold)
    return min((time for time in times if time > now), default=None)
