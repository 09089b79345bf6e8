"""Servers that live and do not work are killed, and somebody else serves meanwhile."""

from __future__ import annotations

import pytest
from tests.support.slot_mind import Mind
from tests.unit.nodeagent.test_standby import gos, promoted, with_standby

from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.attention import Attention
from ling_nodeagent.facts import Performance, Phase, Role


def performs(mind: Mind, pod: str, **fields: float) -> None:
    known = {"patience_ms": 5000.0, **fields}
    mind.post(events.Performed(stream=mind[pod].stream, performance=Performance(**known)))


def test_a_request_without_a_token_for_its_patience_is_a_hang() -> None:
    mind, first, _ = with_standby()
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.later(4.9)
    assert mind.of(do.Kill) == []
    mind.later(0.1)
    (kill,) = mind.of(do.Kill)
    assert (kill.pod, kill.server) == ("one", "s1")
    assert kill.reason.startswith("EngineHung: 1 requests and no token for 5.0 s")
    assert promoted(mind) == ["one", "two"], "the successor does not wait for the kernel"
    assert mind["one"].fault == "EngineHung"
    mind.die(first)
    assert len(mind.of(do.Kill)) == 1


def test_tokens_and_ended_requests_are_progress_one_more_request_is_not() -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.later(4)
    performs(mind, "one", in_flight=1, output_tokens=4)
    mind.later(4)
    performs(mind, "one", in_flight=1, output_tokens=4, requests=1)
    mind.later(4)
    assert mind.of(do.Kill) == []
    performs(mind, "one", in_flight=2, output_tokens=4, requests=1)
    mind.later(1)
    assert len(mind.of(do.Kill)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"in_flight": 0}, id="nothing to do"),
        pytest.param({"in_flight": 1, "patience_ms": 200_000.0}, id="it reads a long prompt"),
        pytest.param({"in_flight": 1, "patience_ms": 0.0}, id="an engine of an earlier release"),
    ],
)
def test_no_hang(fields: dict[str, float]) -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", **fields)
    mind.later(100)
    assert mind.of(do.Kill) == []


def test_who_begins_after_a_pause_has_all_its_patience() -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", in_flight=0, requests=1)
    mind.later(100)
    performs(mind, "one", in_flight=1, requests=1)
    mind.later(4.9)
    assert mind.of(do.Kill) == []


def test_connections_that_nobody_accepts_are_a_hang() -> None:
    mind, _, _ = with_standby()
    mind.later(100)
    mind.post(events.QueueSeen(waiting=1))
    mind.later(4)
    mind.post(events.QueueSeen(waiting=3))
    assert mind.of(do.Kill) == []
    mind.later(1)
    (kill,) = mind.of(do.Kill)
    assert "connections wait" in kill.reason
    assert promoted(mind) == ["one", "two"]


def test_a_queue_that_empties_now_and_then_or_an_engine_that_reports_is_none() -> None:
    mind, _, _ = with_standby()
    for number in range(10):
        mind.post(events.QueueSeen(waiting=5))
        mind.later(3)
        mind.post(events.QueueSeen(waiting=0 if number % 2 else 5))
        performs(mind, "one", requests=number)
    assert mind.of(do.Kill) == []


def test_the_dead_servers_requests_are_not_its_successors() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one", plan=10)
    first = mind.serve("one", "s1")
    performs(mind, "one", in_flight=7, output_tokens=1)
    mind.die(first)
    mind.serve("one", "s2")
    assert mind["one"].performance.in_flight == 0
    mind.later(100)
    assert mind.of(do.Kill) == []


def test_a_promoted_standby_that_does_not_accept_is_killed_too() -> None:
    mind, first, second = with_standby()
    mind.post(events.ListenerAsked(conn=second, re=1))
    mind.die(first)
    mind.later(5)
    (kill,) = mind.of(do.Kill)
    assert kill.pod == "two"
    mind.die(second)
    assert gos(mind)[2:] == ["two"] or gos(mind)[2:] == ["one"]


def test_a_standby_that_gives_no_proof_is_killed_and_never_promoted() -> None:
    mind, first, second = with_standby()
    performs(mind, "two", proof_every_ms=60_000.0, proofs=1)
    mind.later(154.9)
    assert mind.of(do.Kill) == []
    mind.later(0.1)
    (kill,) = mind.of(do.Kill)
    assert (kill.pod, mind["two"].fault, mind["two"].role) == ("two", "StandbyFailedProof", Role.GATED)
    mind.die(first)
    assert promoted(mind) == ["one"]
    mind.die(second)
    assert promoted(mind) == ["one"]


def test_proofs_keep_a_standby() -> None:
    mind, _, _ = with_standby()
    for number in range(10):
        performs(mind, "two", proof_every_ms=60_000.0, proofs=number)
        mind.later(100)
    assert mind.of(do.Kill) == []


def test_a_hint_that_comes_true_kills_nobody_and_a_false_one_is_made_true() -> None:
    mind, first, second = with_standby()
    mind.post(events.DeathHinted(conn=first))
    mind.die(first)
    mind.says("two", "s2", Phase.ACCEPTING)
    mind.serve("one", "s3")
    mind.later(100)
    assert mind.of(do.Kill) == []
    mind.post(events.DeathHinted(conn=second))
    mind.later(5)
    (kill,) = mind.of(do.Kill)
    assert kill.server == "s2"


def test_a_killed_server_without_a_rank_is_gone_by_its_launchers_word() -> None:
    """A stopped process does not connect again to a new agent."""
    mind = Mind()
    mind.keeper()
    mind.engine("one", plan=10, role=Role.ACTIVE, term=3, server="s1", phase=Phase.ACCEPTING)
    mind.post(events.QueueSeen(waiting=1))
    mind.later(5)
    assert len(mind.of(do.Kill)) == 1
    mind.says("one", "s1", Phase.EXITED, exit_code=-9)
    assert gos(mind) == ["one"]


def hung() -> tuple[Mind, int]:
    """`one` was to be killed just now, and `two` was promoted; the connection of `one`'s rank."""
    mind, first, _ = with_standby()
    performs(mind, "one", in_flight=1)
    mind.later(5)
    assert len(mind.of(do.Kill)) == 1
    return mind, first


def killed_or_stopped(mind: Mind) -> list[tuple[str, str]]:
    return [(type(each).__name__, each.pod) for each in mind.said if isinstance(each, do.Kill | do.Stop)]


def test_who_lives_after_a_kill_is_killed_again_and_then_its_launcher_must_end() -> None:
    """A launcher of an earlier release does not know the word."""
    mind, first = hung()
    assert mind.wake == mind.now + 5
    mind.later(4.9)
    assert len(mind.of(do.Kill)) == 1
    mind.later(0.1)
    assert [each.server for each in mind.of(do.Kill)] == ["s1", "s1"]
    mind.later(4.9)
    assert mind.of(do.Stop) == []
    mind.later(0.1)
    (stop,) = mind.of(do.Stop)
    assert (stop.pod, stop.exit_code) == ("one", 1)
    assert stop.reason == "server s1 was to be killed 2 times and lives"
    mind.later(100)
    assert killed_or_stopped(mind) == [("Kill", "one"), ("Kill", "one"), ("Stop", "one")]
    assert mind["one"].through, "its memory counts until the kernel's word"
    mind.die(first)
    assert mind["one"].server is None


def test_who_dies_in_time_is_neither_killed_again_nor_stopped() -> None:
    mind, first = hung()
    mind.later(4.9)
    mind.die(first)
    mind.later(100)
    assert killed_or_stopped(mind) == [("Kill", "one")]


@pytest.mark.parametrize("rank_lives", [True, False], ids=["the kernel has not said it", "no rank ever came"])
def test_a_killed_server_that_a_hello_names_again_is_killed_again(rank_lives: bool) -> None:
    if rank_lives:
        mind, _ = hung()
    else:
        mind = Mind()
        mind.keeper()
        mind.engine("one", plan=10, role=Role.ACTIVE, term=3, server="s1", phase=Phase.ACCEPTING)
        mind.post(events.QueueSeen(waiting=1))
        mind.later(5)
    again = {"plan": 10, "role": Role.ACTIVE, "term": 3, "server": "s1", "phase": Phase.ACCEPTING}
    mind.engine("one", **again)
    assert [each.server for each in mind.of(do.Kill)] == ["s1", "s1"]
    assert (mind["one"].role, gos(mind).count("one")) == (Role.GATED, int(rank_lives)), "no go beside it"
    mind.engine("one", **again)
    assert len(mind.of(do.Stop)) == 1
    mind.engine("one", **again)
    assert len(mind.of(do.Stop)) == 2, "this one may have been lost"
    mind.engine("one", plan=10)
    if not rank_lives:
        assert gos(mind) == ["one"], "without its server it may begin anew"


def test_nothing_is_said_to_a_launcher_that_is_away() -> None:
    mind, _ = hung()
    mind.post(events.StreamGone(stream=mind["one"].stream))
    mind.later(100)
    assert killed_or_stopped(mind) == [("Kill", "one")]


@pytest.mark.parametrize(
    ("pauses", "held_up"),
    [
        pytest.param([1.0, 1.5, 0.0], False, id="it turns"),
        pytest.param([1.0, 2.5], True, id="it stood still"),
        pytest.param([7.0, 1.0], False, id="it turns again"),
    ],
)
def test_an_agent_knows_when_it_was_held_up(pauses: list[float], held_up: bool) -> None:
    now, seen = 50.0, False
    attention = Attention(now, 1.0)
    for pause in pauses:
        now += pause
        seen = attention.seen(now)
    assert seen is held_up


def test_silence_while_the_agent_was_held_up_is_its_own() -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.post(events.QueueSeen(waiting=1))
    mind.now += 60
    mind.post(events.HeldUp())
    mind.later(4.9)
    assert mind.of(do.Kill) == []
    mind.later(0.1)
    assert len(mind.of(do.Kill)) == 1, "it is silent now that somebody listens"
    assert mind.of(do.Stop) == []
    mind.now += 60
    mind.post(events.HeldUp())
    assert len(mind.of(do.Kill)) == 1, "nor is its death late"
    mind.later(5)
    assert len(mind.of(do.Kill)) == 2


def starts(*, seen: float = 0.0, gated: bool = True, **changes: int) -> tuple[Mind, int]:
    """`one` starts; an earlier start of its, if there was one, was silent for `seen` seconds. `two` is gated."""
    mind = Mind(**changes)
    mind.keeper()
    mind.engine("one", plan=10)
    if seen:
        rank = mind.fork("one", "s0")
        mind.later(seen)
        mind.attach("one", "s0")
        mind.says("one", "s0", Phase.WARM)
        mind.says("one", "s0", Phase.ACCEPTING)
        mind.die(rank)
    if gated:
        mind.engine("two", plan=10)
    mind.said.clear()
    return mind, mind.fork("one", "s1")


@pytest.mark.parametrize(
    ("seen", "patience"),
    [
        pytest.param(0, 1800, id="no start of the revision was seen here"),
        pytest.param(3, 120, id="it starts in seconds"),
        pytest.param(100, 300, id="it may be silent for long"),
        pytest.param(900, 1800, id="it compiled kernels for many minutes"),
    ],
)
def test_a_server_that_starts_and_gets_no_further_is_killed_and_another_is_let_go(seen: float, patience: float) -> None:
    mind, rank = starts(seen=seen)
    assert mind.wake is not None
    assert mind.wake <= mind.now + patience
    mind.later(patience - 0.1)
    assert mind.of(do.Kill) == []
    assert gos(mind) == []
    mind.later(0.1)
    (kill,) = mind.of(do.Kill)
    assert (kill.pod, kill.server) == ("one", "s1")
    assert kill.reason == f"EngineHung: it starts and got no further than started for {patience} s"
    assert (mind["one"].fault, mind["one"].deaths) == ("EngineHung", 1 + bool(seen))
    assert gos(mind) == ["two"]
    mind.die(rank)
    assert gos(mind) == ["two"]


def test_alone_it_is_killed_too_and_starts_anew() -> None:
    mind, rank = starts(seen=3, gated=False)
    mind.later(120)
    assert len(mind.of(do.Kill)) == 1
    mind.die(rank)
    mind.later(1)
    assert gos(mind) == ["one"]


def test_phases_and_a_fill_that_grows_are_progress() -> None:
    mind, _ = starts(seen=3)
    mind.attach("one", "s1")
    for number in range(1, 10):
        mind.later(100)
        mind.says("one", "s1", Phase.FILLING, progress=number / 10)
    mind.later(100)
    mind.says("one", "s1", Phase.ATTACHED)
    assert mind.of(do.Kill) == []
    mind.says("one", "s1", Phase.ATTACHED)
    mind.later(119)
    mind.says("one", "s1", Phase.ATTACHED)
    mind.later(1)
    assert "no further than attached" in mind.of(do.Kill)[0].reason, "the same word again is no progress"


def test_who_waits_for_the_fill_of_another_does_not_hang() -> None:
    mind, _ = starts(gated=False, seen=3, standbys=1)
    mind.attach("one", "s1")
    mind.engine("two", plan=10)
    mind.fork("two", "s2")
    assert isinstance(mind.attach("two", "s2"), do.Wait)
    mind.later(120)
    assert [each.pod for each in mind.of(do.Kill)] == ["one"]


def test_a_standby_that_hangs_while_it_starts_is_killed() -> None:
    mind, _, second = with_standby()
    mind.die(second)
    mind.fork("two", "s3")
    mind.later(120)
    assert [each.server for each in mind.of(do.Kill)] == ["s3"]


def test_a_busy_engine_s_standby_and_one_under_an_agent_that_was_held_up_have_more_time() -> None:
    mind, _, second = with_standby()
    mind.die(second)
    performs(mind, "one", in_flight=1, output_tokens=1, patience_ms=1e9)
    mind.fork("two", "s3")
    mind.attach("two", "s3")
    assert mind["two"].yields
    mind.later(1000)
    mind.post(events.HeldUp())
    mind.later(1799)
    assert mind.of(do.Kill) == []
    mind.later(1)
    assert [each.server for each in mind.of(do.Kill)] == ["s3"]


def test_a_new_agent_measures_no_start_of_which_it_saw_the_end_only() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one", plan=10, role=Role.STARTING, server="s1", phase=Phase.ATTACHED)
    mind.later(1)
    mind.says("one", "s1", Phase.WARM)
    assert mind["one"].silence == float("inf")
