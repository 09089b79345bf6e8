"""Actuations and failovers as durations, by the way an engine came to serve."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.support.slot_mind import A, Mind

from ling_nodeagent.decide import reduce
from ling_nodeagent.facts import Launcher, Phase, Role, Server, Slot
from ling_nodeagent.timings import BUCKETS, Durations, Timings


class Timed(Mind):
    """A mind whose every step is timed."""

    def __init__(self) -> None:
        self.timings = Timings()
        super().__init__()

    def post(self, event: Any) -> Any:
        before = self.slot
        self.slot = reduce(before, event, self.now)
        self.timings.seen(before, self.slot, self.now)
        return self.think()

    def think(self) -> Any:
        before = self.slot
        out = super().think()
        self.timings.seen(before, self.slot, self.now)
        return out


def counts(what: dict[str, Durations]) -> dict[str, tuple[int, float]]:
    """Count and sum by path, those with none left out."""
    return {path: (sum(one.counts), round(one.seconds, 6)) for path, one in what.items() if sum(one.counts)}


@pytest.fixture
def mind() -> Timed:
    mind = Timed()
    mind.keeper()
    return mind


def start(mind: Timed, pod: str, server: str, seconds: float, *, filled: bool = False) -> int:
    conn = mind.fork(pod, server)
    mind.attach(pod, server)
    if filled:
        mind.says(pod, server, Phase.FILLING, phases={"filling": 1.0})
        mind.deposit(conn, A)
        mind.seal(conn, A)
    mind.says(pod, server, Phase.ATTACHED)
    mind.now += seconds
    mind.says(pod, server, Phase.WARM)
    if mind[pod].role is Role.ACTIVE:
        mind.says(pod, server, Phase.ACCEPTING)
    return conn


def test_a_first_start_is_cold_and_no_failover(mind: Timed) -> None:
    mind.engine("one")
    start(mind, "one", "s1", 3.0, filled=True)
    assert counts(mind.timings.actuations) == {"cold": (1, 3.0)}
    assert counts(mind.timings.failovers) == {}


def test_a_respawn_attaches_and_counts_from_the_death(mind: Timed) -> None:
    mind.engine("one")
    conn = start(mind, "one", "s1", 3.0, filled=True)
    mind.die(conn)
    mind.now += 0.25
    start(mind, "one", "s2", 2.0)
    assert counts(mind.timings.actuations) == {"cold": (1, 3.0), "gated": (1, 2.0)}
    assert counts(mind.timings.failovers) == {"gated": (1, 2.25)}


def test_a_pod_that_is_deleted_under_its_acceptor_is_a_failover_too(mind: Timed) -> None:
    mind.engine("one")
    conn = start(mind, "one", "s1", 1.0, filled=True)
    mind.forget("one")
    mind.die(conn)
    mind.engine("two")
    mind.now += 0.5
    start(mind, "two", "s2", 2.0)
    assert counts(mind.timings.failovers) == {"gated": (1, 2.5)}


def test_what_served_before_this_agent_was_is_no_actuation(mind: Timed) -> None:
    mind.engine("one", role=Role.ACTIVE, term=4, server="s1", phase=Phase.ACCEPTING)
    assert mind["one"].accepting
    assert counts(mind.timings.actuations) == {}


def slot(**roles: tuple[Role, Phase]) -> Slot:
    """A slot with an engine of each role and phase given; server "s-NAME"."""
    launchers = {
        pod: Launcher(uid=pod, pod=pod, role=role, server=Server(id=f"s-{pod}", phase=phase))
        for pod, (role, phase) in roles.items()
    }
    return Slot(name="demo", since=0, launchers=launchers)


@pytest.mark.parametrize("died", [True, False], ids=["its acceptor dies", "it is wished for"])
def test_a_standby_that_stood_by_is_warm(died: bool) -> None:
    timings = Timings()
    serving, standby = (Role.ACTIVE, Phase.ACCEPTING), (Role.WARM, Phase.WARM)
    old = {} if died else {"one": (Role.DRAINING, Phase.DRAINING)}
    steps = (
        (0.0, slot(one=serving)),
        (1.0, slot(one=serving, two=standby)),
        (60.0, slot(two=standby) if died else slot(one=serving, two=standby)),
        (60.0, slot(two=(Role.ACTIVE, Phase.WARM), **old)),
        (60.02, slot(two=serving, **old)),
    )
    for (_, before), (now, after) in pairwise(steps):
        timings.seen(before, after, now)
    assert counts(timings.actuations) == {"warm": (1, 0.02)}
    assert counts(timings.failovers) == ({"warm": (1, 0.02)} if died else {})


def test_a_slot_that_is_empty_is_forgotten(mind: Timed) -> None:
    mind.engine("one")
    start(mind, "one", "s1", 1.0, filled=True)
    mind.timings.seen(mind.slot, replace(mind.slot, launchers={}), mind.now)
    assert not mind.timings._slots


def test_buckets_count_up_to_their_limit() -> None:
    durations = Durations()
    for seconds in (0.005, 0.0051, 10_000.0):
        durations.observe(seconds)
    told = dict(durations.cumulative())
    assert (told["0.005"], told["0.01"], told["900.0"], told["+Inf"]) == (1, 2, 2, 3)
    assert list(BUCKETS) == sorted(BUCKETS)
