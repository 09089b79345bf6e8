"""Servers that live and do not work: which one hangs, which standby has not proved itself. Facts in, decisions out.

A server is silent for too long when it has a request and no token of any comes for as long as it said itself
(`patience_ms`: 5 s, 50 steps if that is more, and the time to read the prompts), or when connections wait in the
slot's queue, nobody accepts them, and it has nothing to say either: then the process that accepts is stopped. Or when
it starts and gets no further (`startup`): nobody else is let go for as long as it is expected to come. It is
killed by its launcher; from that moment it is as good as dead, so a successor does not wait for the kernel's word.

Words get lost, and launchers of an earlier release know no Kill. So it is said again while the server is not known to
be dead, and then Stop, which every launcher obeys: its server dies, its container starts anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from . import decisions as do
from . import startup
from .facts import Launcher, Phase, Role, Server
from .roles import as_good_as_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from . import events
    from .facts import Slot

HUNG: Final = "EngineHung"
UNPROVEN: Final = "StandbyFailedProof"
SILENCE: Final = 5.0  # seconds
MISSED_PROOFS: Final = 2.5  # intervals without a proof
FAULT_SHOWN: Final = 60.0  # seconds that status tells of a fault at least
KILL_AGAIN: Final = 5.0  # seconds from the word to the kernel's
KILLS: Final = 2  # words before Stop
HINT_PATIENCE: Final = 5.0  # from the hint of a death to the kernel's word


def queue_seen(slot: Slot, event: events.QueueSeen, now: float) -> Slot:
    if not event.waiting:
        return slot if slot.queue_since is None else replace(slot, queue_since=None)
    return replace(slot, queue_since=now) if slot.queue_since is None else slot


def death_hinted(slot: Slot, event: events.DeathHinted, now: float) -> Slot:
    """Its memory counts until the kernel reports every rank dead."""
    rank = slot.ranks.get(event.conn)
    launcher = slot.launcher_of(server=rank.server) if rank is not None else None
    return slot if launcher is None else as_good_as_dead(slot, launcher, now)


def decide_health(slot: Slot, now: float) -> tuple[Slot, list[do.Decision]]:
    out: list[do.Decision] = []
    if slot.recovering:
        return slot, out
    for uid in tuple(slot.launchers):
        launcher = slot.launchers[uid]
        server = launcher.server
        if server is None or not launcher.stream:
            continue
        if server.kills:
            slot = _insist(slot, launcher, server, now, out)
            continue
        for fault, due, reason in _suspicions(slot, launcher, server):
            if now >= due:
                slot = _kill(slot, launcher, server, fault, reason, now, out)
                break
    return slot, out


def times(slot: Slot) -> list[float]:
    """When time alone may show a fault."""
    out = [each.fault_at + FAULT_SHOWN for each in slot.launchers.values() if each.fault]
    for launcher in slot.launchers.values():
        server = launcher.server
        if server is None or not launcher.stream:
            continue
        if server.kills:
            out.append(server.killed_at + KILL_AGAIN)
        else:
            out += [due for _, due, _ in _suspicions(slot, launcher, server)]
    return out


def shown(launcher: Launcher, now: float) -> bool:
    """Whether status still tells of its last fault."""
    replaced = launcher.server is not None and not launcher.server.dead and launcher.role is not Role.STARTING
    return now < launcher.fault_at + FAULT_SHOWN or not replaced


def _suspicions(slot: Slot, launcher: Launcher, server: Server) -> Iterator[tuple[str, float, str]]:
    """(fault, when it is one, sentence) of everything that this server is suspected of."""
    seen = launcher.performance
    if server.dead:
        yield "", server.dead_at + HINT_PATIENCE, "it was said to be dying and lives"
        return
    if launcher.role in (Role.ACTIVE, Role.DRAINING) and seen.in_flight and seen.patience_ms:
        patience = seen.patience_ms / 1000
        yield HUNG, launcher.progress_at + patience, f"{seen.in_flight} requests and no token for {patience:.1f} s"
    if launcher.accepting and slot.queue_since is not None:
        since = max(slot.queue_since, launcher.heard_at)
        yield HUNG, since + SILENCE, f"connections wait to be accepted for {SILENCE:g} s"
    has_listener = bool(server.listener) and server.listener == slot.listener
    if launcher.role is Role.ACTIVE and server.phase is Phase.WARM and has_listener:
        yield HUNG, launcher.progress_at + SILENCE, f"it was promoted and does not accept for {SILENCE:g} s"
    if launcher.role is Role.STARTING and not startup.waits_for_others(slot, launcher):
        patience = startup.patience(slot, launcher)
        reason = f"it starts and got no further than {server.phase} for {patience:.0f} s"
        yield HUNG, server.silence.since + patience, reason
    if launcher.role is Role.WARM and seen.proof_every_ms:
        patience = MISSED_PROOFS * seen.proof_every_ms / 1000 + SILENCE
        yield UNPROVEN, launcher.proved_at + patience, f"no proof for {patience:.0f} s"


def _kill(
    slot: Slot, launcher: Launcher, server: Server, fault: str, reason: str, now: float, out: list[do.Decision]
) -> Slot:
    said = f"{fault}: {reason}" if fault else reason
    out.append(do.Kill(stream=launcher.stream, pod=launcher.pod, server=server.id, reason=said))
    if fault:
        slot = as_good_as_dead(slot.put(replace(launcher, fault=fault, fault_at=now)), launcher, now)
    launcher = slot.launchers[launcher.uid]
    return slot.put(replace(launcher, server=replace(launcher.server or server, kills=1, killed_at=now)))


def _insist(slot: Slot, launcher: Launcher, server: Server, now: float, out: list[do.Decision]) -> Slot:
    """What follows when a server that was to be killed is still not known to be dead."""
    if launcher.stopped or now < server.killed_at + KILL_AGAIN:
        return slot
    if server.kills < KILLS:
        reason = "it was to be killed and lives"
        out.append(do.Kill(stream=launcher.stream, pod=launcher.pod, server=server.id, reason=reason))
        return slot.put(replace(launcher, server=replace(server, kills=server.kills + 1, killed_at=now)))
    reason = f"server {server.id} was to be killed {server.kills} times and lives"
    out.append(do.Stop(stream=launcher.stream, pod=launcher.pod, exit_code=1, reason=reason))
    return slot.put(replace(launcher, stopped=True))
