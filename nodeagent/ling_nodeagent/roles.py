"""Roles: which server of a slot accepts, which comes next, which must go. Facts in, decisions out.

A role moves only along TRANSITIONS. A server's death is told by the kernel (`rank_dead`); the launcher's word EXITED
counts alone only when none of the server's processes ever came to the agent. The rules are in `choose`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from . import condemned, startup
from .facts import Launcher, Performance, Phase, Rank, Role, Server, SetState, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from . import events


class Cause(StrEnum):
    GO = "go"
    WARMED = "warmed"
    PROMOTE = "promote"
    DRAIN = "drain"
    DIED = "died"


TRANSITIONS: Final[Mapping[tuple[Role, Cause], Role]] = MappingProxyType({
    (Role.GATED, Cause.GO): Role.STARTING,
    (Role.STARTING, Cause.WARMED): Role.WARM,
    (Role.STARTING, Cause.DRAIN): Role.DRAINING,
    (Role.STARTING, Cause.DIED): Role.GATED,
    (Role.WARM, Cause.PROMOTE): Role.ACTIVE,
    (Role.WARM, Cause.DRAIN): Role.DRAINING,
    (Role.WARM, Cause.DIED): Role.GATED,
    (Role.ACTIVE, Cause.DRAIN): Role.DRAINING,
    (Role.ACTIVE, Cause.DIED): Role.GATED,
    (Role.DRAINING, Cause.DIED): Role.GATED,
})  # fmt: skip
MAX_DEATHS: Final = 5  # in a row without a first token: EngineCrashLoop
LAST_DELAY: Final = 30.0


def moved(launcher: Launcher, cause: Cause) -> Launcher:
    """The launcher after `cause`; itself when the table has no such step."""
    role = TRANSITIONS.get((launcher.role, cause))
    return launcher if role is None else replace(launcher, role=role)


def respawn_delay(deaths: int) -> float:
    """Seconds before the next go: at once after the first death without a token, then 1, 2, 4 .. 30."""
    return 0.0 if deaths < 2 else min(2.0 ** (deaths - 2), LAST_DELAY)


# what happens to servers


def rank_dead(slot: Slot, rank: Rank, now: float) -> Slot:
    """The first dead rank is the server's death; its memory is free when the last one is dead."""
    launcher = slot.launcher_of(server=rank.server)
    if launcher is not None:
        slot = _died(slot, launcher, now)
    return _clear(slot, rank.server)


def launcher_dead(slot: Slot, launcher: Launcher, now: float) -> Slot:
    """The container's first process is dead, so all of it is dying; ranks that are known report for themselves."""
    if launcher.conn:  # a new process of the same pod is here already
        return slot
    slot = slot.put(replace(launcher, leaving=False, stop_due=False, stopped=False, ready=False))
    return _lost(slot, launcher.uid, now)


def _lost(slot: Slot, uid: str, now: float) -> Slot:
    """The launcher's server, if any, does not live; its processes may still be dying."""
    server = slot.launchers[uid].server
    if server is None:  # let go, but nothing was started: the room that it was promised is free again
        return slot.put(moved(slot.launchers[uid], Cause.DIED))
    slot = _died(slot, slot.launchers[uid], now)
    return _clear(slot, server.id)


def as_good_as_dead(slot: Slot, launcher: Launcher, now: float) -> Slot:
    """It serves nobody any more; its memory counts until the kernel says that all its processes are dead."""
    return _died(slot, slot.launchers[launcher.uid], now)


def _died(slot: Slot, launcher: Launcher, now: float) -> Slot:
    server = launcher.server
    if server is None or server.dead:
        return slot
    drained = launcher.role is Role.DRAINING
    deaths = 0 if server.tokens else launcher.deaths + (not drained)
    launcher = replace(
        moved(launcher, Cause.DIED),
        server=replace(server, dead=True, dead_at=now),
        last_server=server.id,
        last_sets=frozenset(name for name, held in slot.sets.items() if server.id in held.attached),
        died=not drained,
        deaths=deaths,
        performance=replace(launcher.performance, in_flight=0),
        go_at=now if drained else now + respawn_delay(deaths),
        stop_due=launcher.stop_due or (deaths >= MAX_DEATHS and not drained),
    )
    return slot.put(launcher)


def _clear(slot: Slot, server: str) -> Slot:
    """When no process of a dead server is left, nothing of it is."""
    if slot.alive(server):
        return slot
    launcher = slot.launcher_of(server=server)
    if launcher is not None and launcher.server is not None:
        exit_code = launcher.server.exit_code
        last_exit = launcher.last_exit if exit_code is None else exit_code
        slot = slot.put(replace(launcher, server=None, last_exit=last_exit))
    sets = {
        name: replace(held, attached=held.attached - {server}) if server in held.attached else held
        for name, held in slot.sets.items()
    }
    return replace(slot, sets=sets)


def server_changed(slot: Slot, event: events.ServerChanged, now: float) -> Slot:
    launcher = slot.launcher_of(stream=event.stream)
    if launcher is None:
        return slot
    if event.server == launcher.last_server:
        return _late_word(slot, launcher, event, now)
    server = launcher.server
    if server is None or (server.dead and server.id != event.server):
        server = Server(id=event.server, silence=startup.Silence(since=now, longest=0.0))
        launcher = replace(moved(launcher, Cause.GO), performance=Performance(), yields=False)
    if server.id != event.server:
        return slot
    launcher = replace(launcher, server=_progressed(server, event, now))
    if event.phase is Phase.EXITED:
        slot = condemned.exited(slot.put(launcher), launcher, event.server, event.exit_code, now)
        known = any(rank.server == event.server for rank in slot.ranks.values())
        return slot if known else _lost(slot, launcher.uid, now)
    if event.phase is Phase.WARM:
        silence = launcher.server.silence.longest if launcher.server is not None else launcher.silence
        launcher = replace(moved(launcher, Cause.WARMED), died=False, proved_at=now, silence=silence)
    if event.phase is Phase.ACCEPTING:
        return _accepts(slot, launcher, now)
    return _fill_progress(slot.put(launcher), event)


def _accepts(slot: Slot, launcher: Launcher, now: float) -> Slot:
    """Who accepts is active: an agent that is gone promoted it, and this one was told of a warm server."""
    if launcher.role not in (Role.STARTING, Role.WARM):
        return slot.put(launcher)
    launcher = moved(moved(launcher, Cause.WARMED), Cause.PROMOTE)
    slot = slot.put(replace(launcher, died=False, progress_at=now, succeeds=slot.recovering))
    return slot if slot.recovering else _ranked(slot, launcher.uid, launcher.term)


def succeed(slot: Slot) -> Slot:
    """All are back: this agent has promoted nobody, so nobody was promoted after those who were seen to begin.

    Their launchers may not know the term: the word goes to the server too, on a shorter way.
    """
    for each in tuple(slot.launchers.values()):
        if each.succeeds and each.role is Role.ACTIVE:
            slot = _ranked(slot, each.uid, max(each.term, slot.term))
    return slot


def _ranked(slot: Slot, uid: str, term: int) -> Slot:
    """With that term, or the next one if another active engine has it."""
    term += any(x.role is Role.ACTIVE and x.term == term for x in slot.launchers.values() if x.uid != uid)
    launcher = replace(slot.launchers[uid], term=term, succeeds=False)
    return replace(slot, term=max(slot.term, term)).put(launcher)


def _late_word(slot: Slot, launcher: Launcher, event: events.ServerChanged, now: float) -> Slot:
    if event.phase is not Phase.EXITED:
        return slot
    slot = condemned.exited(slot, launcher, event.server, event.exit_code, now)
    if launcher.server is not None and launcher.server.id == event.server:
        launcher = replace(launcher, server=replace(launcher.server, exit_code=event.exit_code))
    return _clear(slot.put(replace(launcher, last_exit=event.exit_code)), event.server)


def _progressed(server: Server, event: events.ServerChanged, now: float) -> Server:
    exit_code = event.exit_code if event.phase is Phase.EXITED else None
    # EXITED is a hint: the phase stays what it was until the kernel agrees
    phase = server.phase if event.phase is Phase.EXITED else event.phase
    phases = {**server.phases, **event.phases}
    after = replace(server, phase=phase, phases=phases, progress=event.progress, exit_code=exit_code)
    return startup.further(server, after, now)


def _fill_progress(slot: Slot, event: events.ServerChanged) -> Slot:
    if event.phase is Phase.FILLING:
        for held in slot.sets.values():
            if held.filler == event.server and held.state is SetState.FILLING:
                slot = slot.put_set(replace(held, progress=event.progress))
    return slot


def performed(slot: Slot, event: events.Performed, now: float) -> Slot:
    launcher = slot.launcher_of(stream=event.stream)
    if launcher is None:
        return slot
    launcher = replace(_progress(launcher, event, now), performance=event.performance, heard_at=now)
    if event.performance.output_tokens and launcher.server is not None and not launcher.server.dead:
        launcher = replace(launcher, deaths=0, server=replace(launcher.server, tokens=True))
    return slot.put(launcher)


def _progress(launcher: Launcher, event: events.Performed, now: float) -> Launcher:
    """Tokens, ends of requests and proofs are progress; one more request is not. Patience begins when there is some."""
    before, after = launcher.performance, event.performance
    done = (before.output_tokens, before.requests) != (after.output_tokens, after.requests)
    if done or not before.in_flight or not before.patience_ms:
        launcher = replace(launcher, progress_at=now)
    if after.arrivals > before.arrivals:
        launcher = replace(launcher, arrived_at=now)
    return replace(launcher, proved_at=now) if after.proofs != before.proofs else launcher


def leaving(slot: Slot, event: events.Leaving, now: float) -> Slot:
    launcher = slot.launcher_of(stream=event.stream)
    return slot if launcher is None else slot.put(replace(launcher, leaving=True))


def launcher_hello(slot: Slot, launcher: Launcher, event: events.LauncherHello, now: float) -> Slot:
    """What the launcher says of its server wins over what is known: words of either side may have been lost."""
    live = event.server if event.server != launcher.last_server else ""
    known = launcher.server
    if known is not None and known.kills and known.id == event.server:
        # it lives, and must not: the word got lost, or this launcher does not know it
        return slot.put(replace(launcher, role=Role.GATED, server=replace(known, killed_at=float("-inf"))))
    if known is not None and known.id != live:
        slot = _lost(slot, launcher.uid, now)
        launcher = slot.launchers[launcher.uid]
        known = launcher.server
    if not live:
        return slot.put(replace(launcher, role=Role.GATED))
    if known is None or known.dead:
        known = Server(id=live, silence=startup.Silence(since=now))
    phase = event.phase or known.phase
    role = event.role if event.role is not Role.GATED else Role.STARTING
    if role is Role.STARTING and phase is Phase.WARM:
        role = Role.WARM
    server = replace(known, phase=phase, claims=frozenset(event.sets))
    return slot.put(replace(launcher, server=server, role=role, term=event.term))
