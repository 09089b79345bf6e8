"""The listening socket of a slot, and the word that answers the slot pod's probes.

The keeper makes the listener, because its address is the slot pod's; the agent and every launcher hold a copy, so it
outlives the keeper. One of another network namespace than the keeper's is of a pod that is gone, and is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import decisions as do
from .departure import overdue, restarts_by
from .facts import Keeper, Role, Slot
from .mappings import with_item

if TYPE_CHECKING:
    from . import events

LISTEN_AGAIN = 1.0  # seconds after the keeper was told to listen and could not


def wanted(slot: Slot, netns: int) -> bool:
    """Whether the agent should keep a listener of that namespace that it was just given."""
    if slot.listener == netns:
        return False
    return (slot.keeper is None and not slot.listener) or (slot.keeper is not None and slot.keeper.netns == netns)


def held(slot: Slot, event: events.ListenerHeld, now: float) -> Slot:
    """`conn` has that listener, and so has the agent."""
    if slot.listener != event.netns:
        slot = replace(slot, listener=event.netns, listener_told=frozenset())
    keeper = slot.keeper
    if keeper is not None and keeper.conn == event.conn:
        slot = replace(slot, keeper=replace(keeper, listens=True))
    return replace(slot, listener_told=slot.listener_told | {event.conn})


def none(slot: Slot, event: events.NoListener, now: float) -> Slot:
    if slot.keeper is None or slot.keeper.conn != event.conn:
        return slot
    return replace(slot, keeper=replace(slot.keeper, listens=False))


def asked(slot: Slot, event: events.ListenerAsked, now: float) -> Slot:
    rank = slot.ranks.get(event.conn)
    if rank is not None and not rank.front:
        slot = replace(slot, ranks=with_item(slot.ranks, rank.conn, replace(rank, front=True)))
    return replace(slot, listener_asks=(*slot.listener_asks, (event.conn, event.re)))


def decide_listener(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    keeper = slot.keeper
    if keeper is not None and keeper.ready:
        slot = _with_keeper(slot, keeper, now, out)
    if slot.listener:
        slot = _spread(slot, out)
        slot = _to_servers(slot, out)
    return slot, out


def _with_keeper(slot: Slot, keeper: Keeper, now: float, out: list[do.Decision]) -> Slot:
    if slot.listener and slot.listener != keeper.netns:
        out.append(do.DropListener(reason="it is of another network namespace than the slot pod's"))
        slot = replace(slot, listener=0, listener_told=frozenset())
    if slot.listener and not keeper.listens:
        out.append(do.SendListener(conn=keeper.conn))
        told = slot.listener_told | {keeper.conn}
        return replace(slot, listener_told=told, keeper=replace(keeper, listens=True))
    due = keeper.asked_at is None or now >= keeper.asked_at + LISTEN_AGAIN
    if not slot.listener and due and not (slot.recovering or keeper.leaving):
        out.append(do.Listen(conn=keeper.conn))
        return replace(slot, keeper=replace(keeper, asked_at=now))
    return slot


def _spread(slot: Slot, out: list[do.Decision]) -> Slot:
    conns = frozenset(each.conn for each in slot.launchers.values() if each.conn and each.ready) - slot.listener_told
    if not conns:
        return slot
    out.extend(do.SendListener(conn=conn) for conn in sorted(conns))
    return replace(slot, listener_told=slot.listener_told | conns)


def _to_servers(slot: Slot, out: list[do.Decision]) -> Slot:
    """Answers the ranks that asked; a server that has the listener of a former slot pod gets the new one unasked."""
    for conn, re in slot.listener_asks:
        out.append(do.SendListener(conn=conn, re=re))
        slot = _given(slot, conn)
    slot = replace(slot, listener_asks=()) if slot.listener_asks else slot
    servers = [each.server for each in slot.launchers.values() if each.server is not None]
    stale = {server.id for server in servers if not server.dead and server.listener not in (0, slot.listener)}
    for conn in sorted(filter(None, map(slot.front_of, stale))):
        out.append(do.SendListener(conn=conn))
        slot = _given(slot, conn)
    return slot


def _given(slot: Slot, conn: int) -> Slot:
    rank = slot.ranks.get(conn)
    launcher = slot.launcher_of(server=rank.server) if rank is not None else None
    if launcher is None or launcher.server is None:
        return slot
    return slot.put(replace(launcher, server=replace(launcher.server, listener=slot.listener)))


def decide_word(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    keeper = slot.keeper
    if keeper is None or not keeper.ready:
        return slot, []
    out: list[do.Decision] = []
    word = word_of(slot, now)
    if keeper.word != word and (word[0] or not slot.recovering):  # a new agent does not know yet: the last word stands
        out.append(do.Word(conn=keeper.conn, ready=word[0], message=word[1]))
        keeper = replace(keeper, word=word)
    if (keeper.members, keeper.term) != (slot.callers, slot.term) and slot.callers:
        out.append(do.Members(conn=keeper.conn, callers=slot.callers, term=slot.term))
        keeper = replace(keeper, members=slot.callers, term=slot.term)
    restart = restarts_by(slot)
    may_go = _empty(slot) or (restart is not None and now >= restart)
    if keeper.leaving and not keeper.released and not slot.recovering and may_go:
        out.append(do.Released(conn=keeper.conn))
        keeper = replace(keeper, released=True)
    return (slot if keeper is slot.keeper else replace(slot, keeper=keeper)), out


def _empty(slot: Slot) -> bool:
    """No byte of the slot's weights is held, and no server of it answers anybody."""
    return not slot.sets and not slot.ranks and not any(each.through for each in slot.launchers.values())


def word_of(slot: Slot, now: float) -> tuple[bool, str]:
    """The readiness of the slot pod: somebody accepts, or did a short while ago and a successor is coming."""
    if overdue(slot, now):
        return False, "the node is left and the time for a replacement is up: evictions are let through"
    for each in slot.launchers.values():
        if each.accepting:
            return True, f"{each.pod} accepts"
    until = hold_until(slot)
    if until is not None and now < until and not slot.ending and _coming(slot):
        return True, "nobody accepts; connections are held for a successor"
    return False, slot.message or "nobody accepts"


def hold_until(slot: Slot) -> float | None:
    """Until when connections are held for a successor."""
    if slot.accepted_at is None or slot.spec is None:
        return None
    return slot.accepted_at + slot.spec.hold_seconds


def _coming(slot: Slot) -> bool:
    return any(
        each.serves and not (each.leaving or each.stop_due) and (each.stream or each.role is not Role.GATED)
        for each in slot.launchers.values()
    )
