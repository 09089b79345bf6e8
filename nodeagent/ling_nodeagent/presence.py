"""Who is there: the directory, connections and deaths of keepers and launchers, and when recovering ends.

A closed connection says little: its process may live and come back within 100 ms with all that it holds. So what it
held stays counted (`Slot.former`) until the kernel reports the process dead, or the same pod has given back anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import decisions as do
from . import roles, weights
from .facts import Keeper, Launcher, Performance, Rank, Slot
from .mappings import with_item, without

if TYPE_CHECKING:
    from . import events


def spec_changed(slot: Slot, event: events.SpecChanged, now: float) -> Slot:
    if event.spec is None:
        return replace(slot, gone=True)
    released = slot.released and not slot.gone  # after one that was deleted it is another slot of its name
    return replace(slot, spec=event.spec, gone=False, released=released, leaves_by=event.leaves_by)


def callers_changed(slot: Slot, event: events.CallersChanged, now: float) -> Slot:
    had, has = (any(c.component == "slot" for c in callers) for callers in (slot.callers, event.callers))
    gone = False if has else slot.pod_gone or had
    return prune(replace(slot, callers=event.callers, pod_gone=gone))


def prune(slot: Slot) -> Slot:
    """Forgets launchers whose pod is gone and of which nothing is left."""
    known = {caller.uid for caller in slot.callers}
    for each in list(slot.launchers.values()):
        if each.uid not in known and not (each.stream or each.conn or each.server):
            slot = replace(slot, launchers=without(slot.launchers, each.uid))
    return slot


def keeper_hello(slot: Slot, event: events.KeeperHello, now: float) -> Slot:
    if slot.keeper is not None:
        slot = _retire(slot, slot.keeper.conn, slot.keeper.uid)
    return replace(slot, keeper=Keeper(conn=event.conn, uid=event.uid, netns=event.netns))


def launcher_connected(slot: Slot, event: events.LauncherConnected, now: float) -> Slot:
    slot, launcher = launcher_for(slot, event.uid, event.pod)
    if launcher.conn:
        slot = _retire(slot, launcher.conn, launcher.uid)
    return slot.put(replace(launcher, conn=event.conn, ready=False))


def launcher_for(slot: Slot, uid: str, pod: str) -> tuple[Slot, Launcher]:
    """The launcher of that pod, made when it is new."""
    launcher = slot.launchers.get(uid)
    if launcher is None:
        launcher = Launcher(uid=uid, pod=pod, order=slot.sequence)
        slot = replace(slot, sequence=slot.sequence + 1).put(launcher)
    return slot, launcher


def rank_connected(slot: Slot, event: events.RankConnected, now: float) -> Slot:
    rank = Rank(conn=event.conn, uid=event.uid, server=event.server, rank=event.rank)
    again = {c for c, old in slot.ranks.items() if c in event.same and replace(old, conn=event.conn) == rank}
    ranks = {c: old for c, old in slot.ranks.items() if c not in again}  # one death of a process is enough
    return replace(slot, ranks=with_item(ranks, event.conn, rank))


def term_remembered(slot: Slot, event: events.TermRemembered, now: float) -> Slot:
    """A gated launcher does not know the term: without the keeper's word it would go back to zero."""
    return replace(slot, term=max(slot.term, event.term))


def ready(slot: Slot, event: events.Ready, now: float) -> Slot:
    if slot.keeper is not None and slot.keeper.conn == event.conn:
        return _gave_back(replace(slot, keeper=replace(slot.keeper, ready=True)), slot.keeper.uid)
    launcher = slot.launcher_of(conn=event.conn)
    if launcher is None:
        return slot
    return _gave_back(slot.put(replace(launcher, ready=True)), launcher.uid)


def _gave_back(slot: Slot, uid: str) -> Slot:
    """What its earlier connections held is now told by this one."""
    ranks = slot.ranks
    for conn in [c for c, owner in slot.former.items() if owner == uid and c not in ranks]:
        slot = _forget(slot, conn)
    return slot


def disconnected(slot: Slot, event: events.Disconnected, now: float) -> Slot:
    return prune(_closed(slot, event.conn))


def _closed(slot: Slot, conn: int) -> Slot:
    slot = replace(slot, listener_asks=tuple(ask for ask in slot.listener_asks if ask[0] != conn))
    if slot.keeper is not None and slot.keeper.conn == conn:
        return replace(_retire(slot, conn, slot.keeper.uid), keeper=None)
    launcher = slot.launcher_of(conn=conn)
    if launcher is not None:
        return _retire(slot.put(replace(launcher, conn=0, ready=False)), conn, launcher.uid)
    return slot


def _retire(slot: Slot, conn: int, uid: str) -> Slot:
    """The connection is closed, its process perhaps not: it still holds, but nothing can be sent to it."""
    sets = {
        name: replace(
            held,
            backed=held.backed - {conn},
            told=held.told - {conn},
            manifest_sent=0 if held.manifest_sent == conn else held.manifest_sent,
            parts=tuple(replace(p, sent=0, stored=False) if p.sent == conn else p for p in held.parts),
        )
        for name, held in slot.sets.items()
    }
    return replace(slot, sets=sets, former=with_item(slot.former, conn, uid), listener_told=slot.listener_told - {conn})


def _forget(slot: Slot, conn: int) -> Slot:
    """Nothing is held by that connection's process any more."""
    sets = {
        name: replace(held, holders=held.holders - {conn}) if conn in held.holders else held
        for name, held in slot.sets.items()
    }
    return replace(slot, sets=sets, former=without(slot.former, conn))


def peer_dead(slot: Slot, event: events.PeerDead, now: float) -> Slot:
    rank = slot.ranks.get(event.conn)
    if rank is not None:
        slot = roles.rank_dead(replace(slot, ranks=without(slot.ranks, event.conn)), rank, now)
        return prune(_forget(slot, event.conn))
    slot = _closed(slot, event.conn)
    uid = slot.former.get(event.conn, "")
    slot = _forget(slot, event.conn)
    if uid in slot.launchers:
        slot = roles.launcher_dead(slot, slot.launchers[uid], now)
    return prune(slot)


def launcher_hello(slot: Slot, event: events.LauncherHello, now: float) -> Slot:
    slot, launcher = launcher_for(slot, event.uid, event.pod)
    launcher = replace(
        launcher,
        stream=event.stream,
        welcomed=False,
        revision=event.revision,
        serves=event.serves,
        plan=event.plan,
        device_bytes=event.device_bytes,
        weights=event.weights,
        term=event.term,
        asks=(),
        leaving=False,
        stopped=False,
        heard_at=now,
        progress_at=now,
        proved_at=now,
        performance=Performance(),
        yields=False,
        held_back=False,
    )
    slot = replace(slot.put(launcher), term=max(slot.term, event.term), gpus=event.gpus or slot.gpus)
    return weights.claimed(roles.launcher_hello(slot, launcher, event, now))


def stream_gone(slot: Slot, event: events.StreamGone, now: float) -> Slot:
    launcher = slot.launcher_of(stream=event.stream)
    if launcher is None:
        return slot
    return prune(slot.put(replace(launcher, stream=0, welcomed=False, asks=(), lost_at=now)))


def keeper_leaving(slot: Slot, event: events.KeeperLeaving, now: float) -> Slot:
    if slot.keeper is None or slot.keeper.conn != event.conn:
        return slot
    at = slot.keeper.leaving_at if slot.keeper.leaving else now
    return replace(slot, keeper=replace(slot.keeper, leaving=True, leaving_at=at))


def released(slot: Slot, event: events.Released, now: float) -> Slot:
    return replace(slot, released=event.on)


def decide_welcomes(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    for each in tuple(slot.launchers.values()):
        if each.stream and not each.welcomed:
            out.append(do.Welcome(stream=each.stream, term=slot.term, recovering=slot.recovering))
            slot = slot.put(replace(each, welcomed=True))
    return slot, out


def recovered(slot: Slot, now: float) -> bool:
    """Whether all pods with a device have come back and told their roles, or waited for long enough.

    That there are none says little: a kubelet that has just started itself does not know its pods' devices yet.
    """
    if now < slot.since + slot.recover_min:
        return False
    all_back = slot.callers and all(_reported(slot, caller.uid, caller.component) for caller in slot.callers)
    return bool(all_back) or now >= slot.since + slot.recover_max


def _reported(slot: Slot, uid: str, component: str) -> bool:
    if component == "slot":
        return slot.keeper is not None and slot.keeper.uid == uid and slot.keeper.ready
    return uid in slot.launchers and slot.launchers[uid].connected


def decide_recovery(slot: Slot, now: float) -> Slot:
    return roles.succeed(replace(slot, recovering=False)) if slot.recovering and recovered(slot, now) else slot
