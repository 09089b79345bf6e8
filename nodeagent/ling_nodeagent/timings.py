"""How long starts and failovers take, from one value of a slot's facts to the next. No clock: `now` is monotonic, s.

*Actuation* is the time until an engine accepts: `cold` from the fork of a server that had to fill its weights, `gated`
from the fork of one that attached them, `warm` from the promotion of one that stood by. *Failover* is the time from
the death of the server that accepted until another one accepts, named after how that one came; a drain is none.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .facts import Phase, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .facts import Launcher, Slot

PATHS: Final = ("cold", "gated", "warm")
# from a promotion (ms) over a fork beside attached weights (s) to reading a checkpoint (minutes)
STOOD_BY: Final = 0.1  # s warm, from when on an engine was a standby and not on its way
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 900.0)


@dataclass(slots=True)
class Durations:
    """A histogram's counts (not cumulative) and sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> Sequence[tuple[str, float]]:
        """Pairs of upper limit and count up to it, as Prometheus wants them."""
        total, out = 0, []
        for limit, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            out.append((limit, float(total)))
        return out


@dataclass(slots=True)
class _Watched:
    """What is remembered of one slot between two events."""

    forked: dict[str, float] = field(default_factory=dict)  # by server
    warm: dict[str, float] = field(default_factory=dict)  # by server
    promoted: dict[str, float] = field(default_factory=dict)  # by server
    died_at: float | None = None  # the acceptor's death that nobody has made up for yet


@dataclass(slots=True)
class Timings:
    """Durations by path, over all slots of the node since the agent started."""

    actuations: dict[str, Durations] = field(default_factory=lambda: {path: Durations() for path in PATHS})
    failovers: dict[str, Durations] = field(default_factory=lambda: {path: Durations() for path in PATHS})
    _slots: dict[str, _Watched] = field(default_factory=dict)

    def seen(self, before: Slot, after: Slot, now: float) -> None:
        """One step of a slot."""
        if before.launchers is after.launchers:
            return
        watched = self._slots.setdefault(after.name, _Watched())
        for uid, launcher in after.launchers.items():
            self._of_launcher(watched, before.launchers.get(uid), launcher, now)
        if _acceptor_died(before, after):
            watched.died_at = now
        if not after.launchers:
            del self._slots[after.name]

    def _of_launcher(self, watched: _Watched, before: Launcher | None, after: Launcher, now: float) -> None:
        server = after.server
        former = before.server if before is not None else None
        if server is None or server.dead:
            if former is not None:
                for times in (watched.forked, watched.warm, watched.promoted):
                    times.pop(former.id, None)
            return
        new = former is None or former.id != server.id
        if new and server.phase is Phase.STARTED:  # else it lived before this agent did
            watched.forked[server.id] = now
        if after.role is Role.WARM:
            watched.warm.setdefault(server.id, now)
        elif after.role is Role.ACTIVE and server.id in watched.warm:
            watched.promoted.setdefault(server.id, now)
        if after.accepting and server.id in (watched.forked.keys() | watched.warm.keys()):
            self._accepts(watched, server.id, Phase.FILLING.value in server.phases, now)

    def _accepts(self, watched: _Watched, server: str, filled: bool, now: float) -> None:
        forked, warm = watched.forked.pop(server, None), watched.warm.pop(server, now)
        promoted = watched.promoted.pop(server, now)
        stood_by = promoted - warm > STOOD_BY or (watched.died_at is not None and warm < watched.died_at)
        since = promoted if stood_by else forked
        path = "warm" if stood_by else "cold" if filled else "gated"
        if since is not None:
            self.actuations[path].observe(now - since)
        if watched.died_at is not None:
            self.failovers[path].observe(now - watched.died_at)
            watched.died_at = None


def _acceptor_died(before: Slot, after: Slot) -> bool:
    """Whether the last server that accepted is dead now, unasked."""
    for uid, launcher in before.launchers.items():
        if not launcher.accepting or launcher.server is None:
            continue
        now = after.launchers.get(uid)
        if now is None or now.server is None or now.server.dead or now.server.id != launcher.server.id:
            return not any(each.accepting for each in after.launchers.values())
    return False
