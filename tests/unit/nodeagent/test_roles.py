"""Who serves: the transition table, and the rules that move along it."""

from __future__ import annotations

from itertools import product

import pytest
from tests.support.slot_mind import NEW, OLD, A, B, Mind

from ling_nodeagent import choose, events
from ling_nodeagent import decisions as do
from ling_nodeagent.facts import Launcher, Performance, Phase, Role
from ling_nodeagent.roles import TRANSITIONS, Cause, moved, respawn_delay

EXPECTED = {
    #                go             warmed     promote      drain          died
    Role.GATED: (Role.STARTING, Role.GATED, Role.GATED, Role.GATED, Role.GATED),
    Role.STARTING: (Role.STARTING, Role.WARM, Role.STARTING, Role.DRAINING, Role.GATED),
    Role.WARM: (Role.WARM, Role.WARM, Role.ACTIVE, Role.DRAINING, Role.GATED),
    Role.ACTIVE: (Role.ACTIVE, Role.ACTIVE, Role.ACTIVE, Role.DRAINING, Role.GATED),
    Role.DRAINING: (Role.DRAINING, Role.DRAINING, Role.DRAINING, Role.DRAINING, Role.GATED),
}
CAUSES = (Cause.GO, Cause.WARMED, Cause.PROMOTE, Cause.DRAIN, Cause.DIED)


@pytest.mark.parametrize(("role", "cause"), [*product(Role, Cause)])
def test_every_role_meets_every_cause(role: Role, cause: Cause) -> None:
    after = moved(Launcher(uid="u", pod="p", role=role), cause)
    assert after.role is EXPECTED[role][CAUSES.index(cause)]


def test_the_table_names_no_step_that_stays() -> None:
    assert all(before is not after for (before, _), after in TRANSITIONS.items())


@pytest.mark.parametrize(
    ("deaths", "seconds"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 30), (50, 30)]
)
def test_respawns_wait_longer_and_longer(deaths: int, seconds: float) -> None:
    assert respawn_delay(deaths) == seconds


def gos(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.Go)]


def roles_set(mind: Mind) -> list[tuple[str, Role, int]]:
    return [(each.pod, each.role, each.term) for each in mind.of(do.SetRole)]


def serving(**changes: int) -> tuple[Mind, int]:
    """A slot whose engine `one` accepts, after one fill."""
    mind = Mind(**changes)
    mind.keeper()
    mind.engine("one", plan=10)
    return mind, mind.serve("one", "s1")


def test_first_start_lets_one_go_and_promotes_it() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    mind.engine("two")
    assert gos(mind) == ["one"]
    mind.start("one", "s1")
    assert roles_set(mind) == [("one", Role.ACTIVE, 1)]
    mind.says("one", "s1", Phase.ACCEPTING)
    assert gos(mind) == ["one"]
    assert mind.slot.term == 1


def test_wanted_revision_is_let_go_first() -> None:
    mind = Mind(recovering=True, revision=NEW)
    mind.keeper()
    mind.engine("old", revision=OLD)
    mind.engine("new", revision=NEW)
    mind.later(1)
    assert gos(mind) == ["new"]


def test_unknown_revision_is_never_let_go() -> None:
    mind = Mind()
    mind.engine("one", revision="cccccccc")
    assert gos(mind) == []


def test_failover_prefers_the_launcher_whose_server_did_not_die() -> None:
    mind, rank = serving()
    mind.engine("two", plan=10)
    mind.die(rank)
    assert gos(mind) == ["one", "two"]


def test_respawn_after_a_token_is_at_once_and_counts_no_death() -> None:
    mind, rank = serving()
    mind.post(events.Performed(stream=mind["one"].stream, performance=Performance(output_tokens=1)))
    mind.die(rank)
    assert gos(mind) == ["one", "one"]
    assert mind["one"].deaths == 0


def test_death_is_the_kernels_word_and_not_the_launchers() -> None:
    mind, rank = serving()
    assert mind.says("one", "s1", Phase.EXITED, exit_code=-9) == []
    assert mind["one"].role is Role.ACTIVE
    mind.die(rank)
    assert mind["one"].server is None
    assert mind["one"].last_exit == -9


def test_exited_counts_when_no_rank_ever_came() -> None:
    mind = Mind()
    mind.engine("one")
    mind.says("one", "s1", Phase.STARTED)
    mind.says("one", "s1", Phase.EXITED, exit_code=7)
    assert gos(mind) == ["one", "one"]
    assert mind["one"].last_exit == 7


def test_a_server_of_two_ranks_is_dead_with_one_and_gone_with_both() -> None:
    mind = Mind()
    mind.engine("one", plan=10)
    first = mind.fork("one", "s1")
    second = mind.new()
    mind.post(events.RankConnected(conn=second, uid="uid-one", server="s1", rank=1))
    mind.die(first)
    assert mind["one"].role is Role.GATED
    assert mind["one"].through  # its plan still takes memory
    assert gos(mind) == ["one"]
    mind.die(second)
    assert gos(mind) == ["one", "one"]


def test_five_deaths_without_a_token_stop_the_launcher() -> None:
    mind = Mind()
    mind.engine("one")
    for number, delay in enumerate([0, 1, 2, 4], 1):
        mind.die(mind.fork("one", f"s{number}"))
        assert len(gos(mind)) == number + (delay == 0)
        mind.later(delay)
        assert len(gos(mind)) == number + 1
    mind.says("one", "s5", Phase.STARTED)
    mind.says("one", "s5", Phase.EXITED, exit_code=6)
    (stop,) = mind.of(do.Stop)
    assert stop.exit_code == 6
    assert "EngineCrashLoop" in stop.reason
    assert mind.later(100) == []


def test_a_crash_loop_ends_with_its_container() -> None:
    mind = Mind()
    mind.engine("one")
    for number in range(5):
        mind.die(mind.fork("one", f"s{number}"))
        mind.later(30)
    conn = mind["one"].conn
    mind.post(events.StreamGone(stream=mind["one"].stream))
    mind.post(events.Disconnected(conn=conn))
    mind.die(conn)
    mind.engine("one")
    assert len(gos(mind)) == 6
    assert mind["one"].deaths == 5


def test_handover_promotes_first_and_drains_after() -> None:
    mind, _ = serving(capacity=1000)
    mind.engine("two", plan=10, revision=NEW)
    assert gos(mind) == ["one"]
    mind.wish("two")
    assert gos(mind) == ["one", "two"]
    mind.start("two", "s2")
    assert roles_set(mind)[-1] == ("two", Role.ACTIVE, 2)
    assert mind["one"].role is Role.ACTIVE
    mind.says("two", "s2", Phase.ACCEPTING)
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 2)


def test_swap_drains_waits_for_the_death_and_then_lets_go() -> None:
    mind, rank = serving(capacity=115)
    mind.engine("two", plan=10, revision=NEW)
    mind.wish("two")
    assert gos(mind) == ["one"]
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)
    mind.says("one", "s1", Phase.DRAINING)
    mind.says("one", "s1", Phase.EXITED)
    assert gos(mind) == ["one"]
    mind.die(rank)
    assert gos(mind) == ["one", "two"]
    assert mind["one"].deaths == 0
    mind.serve("two", "s2")
    assert roles_set(mind)[-1] == ("two", Role.ACTIVE, 2)
    assert mind["one"].role is Role.GATED


def test_swap_to_other_weights_drops_the_old_before_go() -> None:
    mind, rank = serving(capacity=120)
    mind.engine("two", [B], plan=10, revision=NEW)
    mind.wish("two")
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)
    mind.die(rank)
    assert gos(mind) == ["one"]
    assert mind.of(do.DropSet)[-1].set == A.set
    mind.drops_acknowledged()
    assert gos(mind) == ["one", "two"]


def test_wished_pod_that_dies_in_a_swap_gives_way_to_the_previous_one() -> None:
    mind, rank = serving(capacity=115)
    mind.engine("two", plan=10, revision=NEW)
    mind.wish("two")
    mind.die(rank)
    second = mind.fork("two", "s2")
    mind.die(second)
    assert gos(mind) == ["one", "two", "one"]
    mind.serve("one", "s3")
    assert mind.slot.term == 2
    assert mind["one"].accepting
    assert mind.later(100) == []  # the wish is of an old term


def test_wish_of_another_term_is_not_obeyed() -> None:
    mind, _ = serving()
    mind.engine("two", plan=10)
    mind.wish("two", term=7)
    assert gos(mind) == ["one"]


def test_wish_that_can_never_fit_leaves_the_active_alone() -> None:
    mind, _ = serving(capacity=120)
    mind.engine("two", plan=500, revision=NEW)
    mind.wish("two")
    assert roles_set(mind)[-1] == ("one", Role.ACTIVE, 1)
    assert "more than the capacity" in mind.slot.message


def test_of_two_actives_after_a_restart_the_highest_term_wins() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("one", role=Role.ACTIVE, term=3, server="s1", phase=Phase.ACCEPTING)
    mind.engine("two", role=Role.ACTIVE, term=4, server="s2", phase=Phase.ACCEPTING)
    assert roles_set(mind) == []
    mind.later(1)
    assert roles_set(mind) == [("one", Role.DRAINING, 4)]
    assert mind.slot.term == 4


def back(*, told: bool) -> Mind:
    """A new agent: its predecessor promoted `heir` (term 5) and died; the launcher says hello, then the server accepts.

    `told`: the launcher has heard of it, and not the server alone.
    """
    mind = Mind(recovering=True, standbys=2)
    mind.keeper()
    for pod in ("other", "heir", "old"):
        mind.know(pod)
    mind.engine("other", role=Role.WARM, server="s1", phase=Phase.WARM, plan=10)
    mind.engine("heir", role=Role.WARM, server="s2", phase=Phase.WARM, term=5 if told else 0, plan=10)
    mind.says("heir", "s2", Phase.ACCEPTING)
    return mind


@pytest.mark.parametrize("told", [True, False], ids=["launcher told", "server alone told"])
def test_who_accepts_was_promoted_by_the_agent_before(told: bool) -> None:
    mind = back(told=told)
    mind.engine("old", plan=10)
    mind.later(1)
    assert roles_set(mind) == []
    assert [mind[pod].role for pod in ("heir", "other")] == [Role.ACTIVE, Role.WARM]
    assert mind.later(1000) == []


@pytest.mark.parametrize("told", [True, False], ids=["launcher told", "server alone told"])
def test_a_handover_goes_on_when_the_agent_died_in_it(told: bool) -> None:
    mind = back(told=told)
    mind.engine("old", role=Role.ACTIVE, term=4, server="s3", phase=Phase.ACCEPTING, plan=10)
    mind.later(1)
    assert [mind[pod].role for pod in ("heir", "other", "old")] == [Role.ACTIVE, Role.WARM, Role.DRAINING]
    assert (mind.slot.term, mind["heir"].term) == (5, 5)


def test_who_accepts_late_gives_way_to_whom_this_agent_promoted() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("one", role=Role.WARM, term=5, server="s1", phase=Phase.WARM)
    mind.engine("two", role=Role.WARM, server="s2", phase=Phase.WARM)
    mind.wish("two")
    mind.later(1)
    assert roles_set(mind) == [("two", Role.ACTIVE, 6)]
    mind.says("one", "s1", Phase.ACCEPTING)
    mind.says("two", "s2", Phase.ACCEPTING)
    assert roles_set(mind)[1:] == [("one", Role.DRAINING, 6)]


def test_leaving_active_waits_for_its_successor() -> None:
    mind, _ = serving()
    mind.engine("two", plan=10)
    mind.post(events.Leaving(stream=mind["one"].stream))
    assert gos(mind) == ["one", "two"]
    assert roles_set(mind)[-1] == ("one", Role.ACTIVE, 1)
    mind.serve("two", "s2")
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 2)


def test_leaving_active_that_nobody_can_follow_is_drained() -> None:
    mind, _ = serving()
    mind.post(events.Leaving(stream=mind["one"].stream))
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)


def test_leaving_active_is_drained_when_its_successor_needs_the_room() -> None:
    mind, rank = serving(capacity=115)
    mind.engine("two", plan=10)
    mind.post(events.Leaving(stream=mind["one"].stream))
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)
    mind.die(rank)
    assert gos(mind) == ["one", "two"]


def test_idle_connections_go_to_who_accepts_else_to_who_is_let_go_next() -> None:
    mind, rank = serving(capacity=115)
    assert choose.successor(mind.slot, mind["one"]) is None
    mind.engine("two", plan=10)
    mind.engine("three", plan=10)
    mind.post(events.Leaving(stream=mind["one"].stream))
    assert mind["one"].role is Role.DRAINING
    assert choose.successor(mind.slot, mind["one"]) == ("park", mind["two"].conn)
    assert choose.successor(mind.slot, mind["three"]) == ("park", mind["two"].conn)
    assert choose.successor(mind.slot, mind["two"]) is None, "it is let go next and keeps what it has"
    mind.die(rank)
    assert choose.successor(mind.slot, mind["two"]) == ("park", mind["three"].conn)
    heir = mind.serve("two", "s2")
    assert choose.successor(mind.slot, mind["three"]) == ("adopt", heir)


def test_nobody_is_let_go_in_a_slot_that_ends_so_nothing_is_parked_there() -> None:
    mind, _ = serving(capacity=115)
    mind.engine("two", plan=10)
    mind.spec(leaving=True)
    assert choose.successor(mind.slot, mind["one"]) is None


def test_leaving_gated_launcher_is_stopped_with_exit_code_0() -> None:
    mind, _ = serving()
    mind.engine("two")
    mind.post(events.Leaving(stream=mind["two"].stream))
    (stop,) = mind.of(do.Stop)
    assert (stop.pod, stop.exit_code) == ("two", 0)


def test_keeper_that_leaves_is_released_when_all_is_closed() -> None:
    mind, rank = serving()
    assert mind.slot.keeper is not None
    keeper = mind.slot.keeper.conn
    mind.post(events.KeeperLeaving(conn=keeper))
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)
    assert mind.of(do.DropSet) == []
    mind.die(rank)
    assert mind.of(do.Released) == []
    mind.drops_acknowledged()
    assert mind.slot.sets == {}
    assert mind.of(do.Released) == [do.Released(conn=keeper)]
    assert gos(mind) == ["one"]


@pytest.mark.parametrize("how", ["deleted", "leaving", "pod gone"])
def test_slot_that_ends_is_drained_and_dropped(how: str) -> None:
    mind, rank = serving()
    if how == "deleted":
        mind.post(events.SpecChanged(spec=None))
    elif how == "leaving":
        mind.spec(leaving=True)
    else:
        mind.forget("keeper")
    assert roles_set(mind)[-1] == ("one", Role.DRAINING, 1)
    mind.die(rank)
    mind.drops_acknowledged()
    assert mind.slot.sets == {}


def test_filling_launcher_is_let_go_beside_the_active() -> None:
    mind, _ = serving()
    mind.engine("filler", [B], serves=False)
    assert gos(mind) == ["one", "filler"]
    assert roles_set(mind) == [("one", Role.ACTIVE, 1)]


def test_warm_server_that_nobody_wishes_is_drained_beside_an_acceptor() -> None:
    mind, _ = serving()
    mind.engine("two", plan=10)
    mind.wish("two")
    mind.spec(wish=None)
    mind.start("two", "s2")
    assert roles_set(mind)[-1] == ("two", Role.DRAINING, 1)
