"""Answers to attach requests: one answer for all sets of a server, one filling cohort per set, arrival order.

A request whose sets are all sealed is granted. If one is being filled by another server or is being dropped, the whole
request waits: so two cohorts never wait for each other. Else the server fills what is missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ling_api.errors import BadInput
from ling_api.identity import Identity, nearest

from . import condemned
from . import decisions as do
from .facts import Ask, Launcher, SetState, Slot, WeightSet
from .gate import committed, to_drop
from .weights import unfilled

if TYPE_CHECKING:
    from . import events

LONGEST_MESSAGE = 2000  # characters of differing fields: a person reads it in status
MOST_ASKS = 32  # open ones of a launcher: the ranks of a server ask as one
PROGRESS_STEP = 0.02  # a waiting cohort hears of progress in steps of this


def asked(slot: Slot, event: events.AttachAsked, now: float) -> Slot:
    launcher = slot.launcher_of(stream=event.stream)
    if launcher is None:
        return slot
    ask = Ask(request=event.request, server=event.server, sets=event.sets, order=slot.sequence)
    asks = tuple(each for each in launcher.asks if each.request != event.request)
    return replace(slot, sequence=slot.sequence + 1).put(replace(launcher, asks=(*asks, ask)))


def decide_answers(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    asks = [(ask, uid) for uid, each in slot.launchers.items() for ask in each.asks[:MOST_ASKS]]
    slot = _refuse_more(slot, out)
    for ask, uid in sorted(asks, key=lambda pair: pair[0].order):
        slot, answer = _answer(slot, slot.launchers[uid], ask, now)
        slot = _told(slot, uid, ask, answer, out)
    return slot, out


def _refuse_more(slot: Slot, out: list[do.Decision]) -> Slot:
    """Each decision goes through all of them: one launcher's must not hold up everybody."""
    answer = do.Refused(reason=f"{MOST_ASKS} requests of this launcher wait already")
    for launcher in tuple(slot.launchers.values()):
        out.extend(
            do.AnswerAttach(stream=launcher.stream, request=ask.request, server=ask.server, answer=answer)
            for ask in launcher.asks[MOST_ASKS:]
        )
        if len(launcher.asks) > MOST_ASKS:
            slot = slot.put(replace(launcher, asks=launcher.asks[:MOST_ASKS]))
    return slot


def _told(slot: Slot, uid: str, ask: Ask, answer: Answer | None, out: list[do.Decision]) -> Slot:
    """Final answers end the request; a Wait is said again only when it says something new."""
    launcher = slot.launchers[uid]
    rest = tuple(each for each in launcher.asks if each.order != ask.order)
    if isinstance(answer, do.Wait):
        if ask.told is not None and ask.told[0] == answer.reason and abs(answer.progress - ask.told[1]) < PROGRESS_STEP:
            return slot
        rest = (*rest, replace(ask, told=(answer.reason, answer.progress)))
    if answer is not None:
        out.append(do.AnswerAttach(stream=launcher.stream, request=ask.request, server=ask.server, answer=answer))
    return slot.put(replace(launcher, asks=rest))


Answer = do.Granted | do.Fill | do.Wait | do.Refused


def _answer(slot: Slot, launcher: Launcher, ask: Ask, now: float) -> tuple[Slot, Answer | None]:
    """The answer that holds now; None when the server is dead and nobody waits for one."""
    if ask.server == launcher.last_server or (launcher.server is not None and launcher.server.dead):
        return slot, None
    if slot.recovering or slot.spec is None:
        return slot, do.Wait(reason="the agent is recovering" if slot.recovering else "slot not known yet", progress=0)
    refusal = _refusal(slot, launcher, ask)
    if refusal is not None:
        return slot, refusal
    waits = [w for w in (_wait_for(slot.sets.get(name), ask.server) for name in ask.sets) if w is not None]
    if waits:
        return slot, min(waits, key=lambda wait: wait.progress)
    missing = tuple(name for name in ask.sets if _missing(slot, name))
    if missing:
        return _fill(slot, launcher, ask, missing, now)
    return _attach(slot, ask.sets, ask.server), do.Granted(sets=ask.sets)


def _refusal(slot: Slot, launcher: Launcher, ask: Ask) -> do.Refused | None:
    spec = slot.spec
    if spec is not None and launcher.revision not in spec.revisions:
        known = ", ".join(sorted(spec.revisions))
        return do.Refused(reason=f"slot {slot.name} names the revisions {known}, not {launcher.revision}")
    if slot.ending:
        return do.Refused(reason=f"slot {slot.name} is being given up")
    if launcher.server is None or launcher.server.id != ask.server:
        return do.Refused(reason=f"server {ask.server} is not the one that this launcher started")
    unnamed = [name for name in ask.sets if name not in {wanted.set for wanted in launcher.weights}]
    if unnamed or not ask.sets:
        return do.Refused(reason=f"the launcher's hello does not name the set {unnamed[0] if unnamed else '(none)'}")
    return None


def _wait_for(held: WeightSet | None, server: str) -> do.Wait | None:
    if held is None:
        return None
    if held.condemned and held.state is SetState.SEALED:
        return do.Wait(reason=f"{held.set[:8]} is condemned and still in use: {held.condemned}", progress=0.0)
    if held.state is SetState.SEALED:
        return None
    if held.state is SetState.DROPPING:
        return do.Wait(reason=f"{held.set[:8]} is being dropped: {held.reason}", progress=0.0)
    if held.filler == server:
        return None
    return do.Wait(reason=f"{held.set[:8]} is being filled by server {held.filler}", progress=held.progress)


def _missing(slot: Slot, name: str) -> bool:
    held = slot.sets.get(name)
    return held is None or held.state is SetState.FILLING


def _attach(slot: Slot, names: tuple[str, ...], server: str) -> Slot:
    for name in names:
        slot = slot.put_set(replace(slot.sets[name], attached=slot.sets[name].attached | {server}))
    return slot


def _fill(
    slot: Slot, launcher: Launcher, ask: Ask, missing: tuple[str, ...], now: float
) -> tuple[Slot, do.Fill | do.Wait | do.Refused]:
    total = committed(slot, launcher)
    if not total.fits:
        if any(held.state is SetState.DROPPING for held in slot.sets.values()) and to_drop(slot, launcher, now) == ():
            return slot, do.Wait(reason="room is being made", progress=0.0)
        return slot, do.Refused(reason=f"no room in slot {slot.name}: {total.sentence}")
    slot = replace(slot, message=difference_message(slot, launcher, missing) or slot.message)
    wanted = {each.set: each for each in launcher.weights}
    for name in missing:
        if name not in slot.sets:
            slot = condemned.filled_anew(slot, name).put_set(unfilled(wanted[name], ask.server))
    granted = tuple(name for name in ask.sets if name not in missing)
    return _attach(slot, granted, ask.server), do.Fill(sets=missing, granted=granted)


def difference_message(slot: Slot, launcher: Launcher, missing: tuple[str, ...]) -> str:
    """Why what the slot holds does not do: the fields in which the nearest held set differs."""
    held = [identity for each in slot.sets.values() if (identity := _identity(each.identity)) is not None]
    words = []
    for each in launcher.weights:
        identity = _identity(each.identity) if each.set in missing and each.set not in slot.sets else None
        near = nearest(identity, held) if identity is not None else None
        if near is None:
            continue
        fields = "; ".join(f"{diff.field} is {diff.wanted}, held {diff.held}" for diff in near[1])
        words.append(f"{each.role}/{each.rank} is filled anew: {fields}")
    return ". ".join(words)[:LONGEST_MESSAGE]


def _identity(data: bytes) -> Identity | None:
    try:
        return Identity.from_bytes(data) if data else None
    except BadInput:
        return None
