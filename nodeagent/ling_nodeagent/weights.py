"""Weight sets: from the first deposited region to the last closed copy.

filling -> sealed -> dropping -> gone. Each step is taken when the facts allow it: `stored` is answered when the keeper
holds what was deposited, `sealed` when it holds the manifest too, and a set that is being dropped is forgotten - its
memory counted as free - only when every holder has closed its copy and every server that mapped it is dead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import condemned
from . import decisions as do
from .facts import AGENT, Part, Phase, SetState, Slot, Wanted, WeightSet
from .gate import committed, named_sets
from .mappings import without

if TYPE_CHECKING:
    from . import events

# what happens


def has(slot: Slot, event: events.Has, now: float) -> Slot:
    """A keeper or launcher holds this; the agent holds it now too."""
    held = slot.sets.get(event.set) or WeightSet(set=event.set, kind=event.kind)
    held = replace(held, kind=event.kind, holders=held.holders | {event.conn, AGENT})
    if held.state is not SetState.DROPPING:
        known = held.parts + tuple(Part(sizes=sizes) for sizes in event.parts[len(held.parts) :])
        held = replace(
            held, parts=known, identity=held.identity or event.identity, nbytes=max(held.nbytes, _size(known))
        )
        if event.sealed and held.state is SetState.FILLING:
            # it was sealed under an earlier agent: who fills it anew need not go on
            known = tuple(Part(sizes=sizes) for sizes in event.parts)
            held = replace(held, refused=held.replies, parts=known, nbytes=_size(known), filler="")
        if event.sealed:
            held = _sealed_copy(slot, replace(held, state=SetState.SEALED, progress=1.0), event.conn)
            held = condemned.recalled(slot, held)
    return claimed(slot.put_set(held))


def _sealed_copy(slot: Slot, held: WeightSet, conn: int) -> WeightSet:
    """`conn` holds all of it."""
    if slot.keeper is not None and slot.keeper.conn == conn:
        parts = tuple(replace(part, sent=conn, stored=True) for part in held.parts)
        return replace(held, parts=parts, manifest_sent=conn, manifest_stored=True)
    return replace(held, backed=held.backed | {conn})


def _size(parts: tuple[Part, ...]) -> int:
    return sum(sum(part.sizes) for part in parts)


def unfilled(wanted: Wanted, filler: str) -> WeightSet:
    """A set of which nothing is deposited yet."""
    return WeightSet(
        set=wanted.set, kind="", role=wanted.role, rank=wanted.rank, nbytes=wanted.nbytes, identity=wanted.identity,
        filler=filler,
    )  # fmt: skip


def claimed(slot: Slot) -> Slot:
    """Live servers say which sets they have attached or are filling: of a new agent's facts these come last."""
    for launcher in slot.launchers.values():
        server = launcher.server
        if server is None or server.dead:
            continue
        for each in launcher.weights:
            if each.set in server.claims and each.set not in slot.sets and server.phase is Phase.FILLING:
                # agent and keeper died together; the regions live on in the server that fills them
                slot = condemned.filled_anew(slot, each.set).put_set(unfilled(each, server.id))
        for name in server.claims & slot.sets.keys():
            held = slot.sets[name]
            if held.state is not SetState.FILLING and server.id not in held.attached:
                slot = slot.put_set(replace(held, attached=held.attached | {server.id}))
            elif held.state is SetState.FILLING and not held.filler and server.phase is Phase.FILLING:
                slot = slot.put_set(replace(held, filler=server.id))
    return slot


def mapped(slot: Slot, event: events.Mapped, now: float) -> Slot:
    """A rank says so again to every new agent."""
    held, rank = slot.sets.get(event.set), slot.ranks.get(event.conn)
    if held is None or rank is None or held.state is SetState.FILLING or rank.server in held.attached:
        return slot
    return slot.put_set(replace(held, attached=held.attached | {rank.server}))


def deposited(slot: Slot, event: events.Deposited, now: float) -> Slot:
    held = slot.sets.get(event.set)
    if held is None:
        return slot
    part = Part(sizes=event.sizes, reply=(event.conn, event.re) if event.last else None)
    parts = (*held.parts[: event.part], part, *held.parts[event.part + 1 :])
    held = replace(held, kind=event.kind, parts=parts, holders=held.holders | {AGENT})
    return slot.put_set(replace(held, nbytes=max(held.nbytes, _size(parts))))


def stored(slot: Slot, event: events.Stored, now: float) -> Slot:
    held = slot.sets.get(event.set)
    if held is None or event.part >= len(held.parts) or held.parts[event.part].sent != event.conn:
        return slot
    part = replace(held.parts[event.part], stored=True, paid=True)
    return slot.put_set(replace(held, parts=(*held.parts[: event.part], part, *held.parts[event.part + 1 :])))


def manifest_stored(slot: Slot, event: events.ManifestStored, now: float) -> Slot:
    held = slot.sets.get(event.set)
    if held is None or held.manifest_sent != event.conn:
        return slot
    return slot.put_set(replace(held, manifest_stored=True))


def store_failed(slot: Slot, event: events.StoreFailed, now: float) -> Slot:
    return dropping(slot, event.set, f"the keeper could not store it: {event.reason}")


def sealed(slot: Slot, event: events.Sealed, now: float) -> Slot:
    held = slot.sets.get(event.set)
    if held is None or held.state is not SetState.FILLING:
        return slot
    attached = held.attached | {held.filler}
    held = replace(held, state=SetState.SEALED, progress=1.0, seal_reply=(event.conn, event.re), attached=attached)
    return slot.put_set(replace(held, filler=""))


def seal_refused(slot: Slot, event: events.SealRefused, now: float) -> Slot:
    return dropping(slot, event.set, event.reason)


def dropped(slot: Slot, event: events.Dropped, now: float) -> Slot:
    return _closed(slot, event.set, event.conn)


def agent_closed(slot: Slot, event: events.AgentClosed, now: float) -> Slot:
    return _closed(slot, event.set, AGENT)


def _closed(slot: Slot, name: str, holder: int) -> Slot:
    held = slot.sets.get(name)
    if held is None or held.state is not SetState.DROPPING:
        return slot
    return slot.put_set(replace(held, holders=held.holders - {holder}, told=held.told - {holder}))


def dropping(slot: Slot, name: str, reason: str) -> Slot:
    """From now on nobody is given this set."""
    held = slot.sets.get(name)
    if held is None or held.state is SetState.DROPPING:
        return slot
    return slot.put_set(replace(held, state=SetState.DROPPING, reason=reason))


# what to do


def decide_sets(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    for name in tuple(slot.sets):
        slot = _filler_lost(slot, slot.sets[name])
        held = slot.sets[name]
        out.extend(
            do.AnswerError(conn=conn, re=re, reason="the set was given back sealed: ask again")
            for conn, re in held.refused
        )
        held = replace(held, refused=()) if held.refused else held
        if held.state is SetState.DROPPING:
            slot = _drop_step(slot, held, out)
        else:
            held = _store_step(slot, held, out)
            held = _back_up_step(slot, held, out)
            slot = slot if held is slot.sets[name] else slot.put_set(held)
    return slot, out


def _filler_lost(slot: Slot, held: WeightSet) -> Slot:
    if held.state is not SetState.FILLING or (held.filler and slot.alive(held.filler)):
        return slot
    if slot.recovering or (not held.filler and slot.strangers):
        return slot
    return dropping(slot, held.set, "its filler died before it was sealed")


def _drop_step(slot: Slot, held: WeightSet, out: list[do.Decision]) -> Slot:
    if slot.recovering:
        return slot
    out.extend(do.AnswerError(conn=conn, re=re, reason=held.reason) for conn, re in held.replies)
    if held.replies:
        held = replace(held, parts=tuple(replace(part, reply=None) for part in held.parts), seal_reply=None)
    tell = (held.holders - held.told) & reachable(slot)
    if tell:
        out.append(do.DropSet(set=held.set, conns=tuple(sorted(tell - {AGENT})), reason=held.reason))
        held = replace(held, told=held.told | tell)
    in_use = held.attached or (held.filler and slot.alive(held.filler))
    if not (held.holders or in_use or slot.strangers):
        return replace(slot, sets=without(slot.sets, held.set))
    return slot if held is slot.sets[held.set] else slot.put_set(held)


def reachable(slot: Slot) -> frozenset[int]:
    """The holders that can be told something now."""
    conns = {launcher.conn for launcher in slot.launchers.values() if launcher.conn}
    if slot.keeper is not None:
        conns.add(slot.keeper.conn)
    return frozenset(conns | {AGENT})


def _store_step(slot: Slot, held: WeightSet, out: list[do.Decision]) -> WeightSet:
    keeper = slot.keeper
    if keeper is None or not keeper.ready or not held.parts:
        return held
    missing = [number for number, part in enumerate(held.parts) if part.sent != keeper.conn]
    if held.state is SetState.SEALED and missing:
        out.append(do.BackUp(conn=keeper.conn, set=held.set))
        return _sealed_copy(slot, replace(held, holders=held.holders | {keeper.conn}), keeper.conn)
    if missing:
        out.extend(do.KeepPart(conn=keeper.conn, set=held.set, part=number) for number in missing)
        parts = tuple(replace(part, sent=keeper.conn) for part in held.parts)
        held = replace(held, parts=parts, holders=held.holders | {keeper.conn})
    if held.state is SetState.SEALED and held.manifest_sent != keeper.conn:
        out.append(do.KeepManifest(conn=keeper.conn, set=held.set))
        held = replace(held, manifest_sent=keeper.conn, manifest_stored=False)
    return _answer_step(held, out)


def _answer_step(held: WeightSet, out: list[do.Decision]) -> WeightSet:
    """`stored` when the keeper holds all parts so far, `sealed` when it holds the manifest too."""
    if not all(part.stored for part in held.parts):
        return held
    for number, part in enumerate(held.parts):
        if part.reply is not None:
            out.append(do.Answer(conn=part.reply[0], re=part.reply[1], op="stored"))
            parts = (*held.parts[:number], replace(part, reply=None), *held.parts[number + 1 :])
            held = replace(held, parts=parts)
    if held.seal_reply is not None and held.manifest_stored:
        out.append(do.Answer(conn=held.seal_reply[0], re=held.seal_reply[1], op="sealed"))
        held = replace(held, seal_reply=None)
    return held


def _back_up_step(slot: Slot, held: WeightSet, out: list[do.Decision]) -> WeightSet:
    if held.state is not SetState.SEALED:
        return held
    conns = frozenset(each.conn for each in slot.launchers.values() if each.conn and each.ready) - held.backed
    if not conns:
        return held
    out.extend(do.BackUp(conn=conn, set=held.set) for conn in sorted(conns))
    return replace(held, backed=held.backed | conns, holders=held.holders | conns)


def decide_unused(slot: Slot, now: float) -> Slot:
    """Sets that nobody will ask for any more begin to be dropped."""
    if slot.recovering or slot.strangers:
        return slot
    for held in tuple(slot.sets.values()):
        if held.condemned and held.state is SetState.SEALED and not held.attached:
            slot = dropping(slot, held.set, held.condemned)
    reason = _unused_reason(slot)
    if not reason:
        return slot
    spared = frozenset() if slot.ending else named_sets(slot, now)
    for held in tuple(slot.sets.values()):
        if held.state is SetState.SEALED and not held.attached and held.set not in spared:
            slot = dropping(slot, held.set, reason)
    return slot


def _unused_reason(slot: Slot) -> str:
    if slot.ending:
        return "the slot is being given up"
    wanted = slot.spec.revision if slot.spec else ""
    if any(each.accepting and each.revision == wanted for each in slot.launchers.values()):
        return "an engine of the wanted revision is active without it and no launcher names it"
    return ""


def may_fill(slot: Slot, name: str, server: str) -> str:
    """Why that server is not the one to fill that set now; "" when it is."""
    held = slot.sets.get(name)
    if held is None or held.state is not SetState.FILLING or held.filler != server:
        return f"the set {name} is not being filled by server {server}"
    return ""


def may_deposit(slot: Slot, name: str, server: str, nbytes: int) -> str:
    """Why that server may not deposit so many bytes more of that set now; "" when it may.

    What the hello said is room that was promised; beyond it the slot's capacity decides.
    """
    reason = may_fill(slot, name, server)
    if reason:
        return reason
    held = slot.sets[name]
    total = committed(slot.put_set(replace(held, nbytes=max(held.nbytes, _size(held.parts) + nbytes))))
    return "" if total.fits else f"no room for {nbytes} bytes more of the set: {total.sentence}"


def may_seal(slot: Slot, name: str, server: str) -> str:
    """Why that server may not seal that set now; "" when it may."""
    reason = may_fill(slot, name, server)
    if not reason and not (slot.sets[name].parts and all(part.paid for part in slot.sets[name].parts)):
        reason = f"the set {name} is not stored yet: wait for the answer to every deposit"
    return reason
