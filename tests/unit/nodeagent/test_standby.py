"""Warm standbys: let go beside the active engine when they fit, promoted at once, restored after use."""

from __future__ import annotations

from itertools import product

import pytest
from tests.support.slot_mind import NEW, Mind

from ling_nodeagent import decisions as do
from ling_nodeagent import events, standby
from ling_nodeagent.choose import active, successor
from ling_nodeagent.facts import Launcher, Phase, Role
from ling_nodeagent.roles import TRANSITIONS, Cause, moved


def gos(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.Go)]


def promoted(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.SetRole) if each.role is Role.ACTIVE]


def drained(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.SetRole) if each.role is Role.DRAINING]


def with_standby(**changes: int) -> tuple[Mind, int, int]:
    """`one` serves, `two` is its warm standby; the ranks' connections."""
    mind = Mind(**{"standbys": 1, "capacity": 1000, **changes})
    mind.keeper()
    mind.engine("one", plan=10)
    first = mind.serve("one", "s1")
    mind.engine("two", plan=10)
    second = mind.start("two", "s2")
    return mind, first, second


def test_a_standby_is_let_go_when_somebody_serves_and_stays_parked() -> None:
    mind, _, _ = with_standby()
    assert gos(mind) == ["one", "two"]
    assert mind["two"].role is Role.WARM
    assert promoted(mind) == ["one"]
    assert mind.later(1000) == []


def test_no_standby_before_somebody_serves() -> None:
    mind = Mind(standbys=2)
    mind.keeper()
    mind.engine("one", plan=10)
    mind.engine("two", plan=10)
    mind.start("one", "s1")
    assert gos(mind) == ["one"]
    mind.says("one", "s1", Phase.ACCEPTING)
    assert gos(mind) == ["one", "two"]


@pytest.mark.parametrize(("wanted", "goes"), [(0, 0), (1, 1), (2, 2), (5, 3)])
def test_as_many_as_asked_for(wanted: int, goes: int) -> None:
    mind = Mind(standbys=wanted)
    mind.keeper()
    mind.engine("one", plan=10)
    mind.serve("one", "s1")
    for pod in ("two", "three", "four"):
        mind.engine(pod, plan=10)
    assert len(gos(mind)) == 1 + goes


def test_a_standby_that_does_not_fit_waits_gated_and_status_says_why() -> None:
    mind = Mind(standbys=1, capacity=115)
    mind.keeper()
    mind.engine("one", plan=10)
    mind.serve("one", "s1")
    mind.engine("two", plan=10)
    assert gos(mind) == ["one"]
    assert mind.slot.message.startswith("two waits as standby: ")
    assert standby.missing(mind.slot, active(mind.slot)) == 1


def test_the_standby_is_promoted_in_the_same_breath_and_the_dead_one_comes_back_as_standby() -> None:
    mind, first, _ = with_standby()
    mind.says("two", "s2", Phase.WARM)
    out = mind.die(first)
    assert [type(each) for each in out if isinstance(each, do.SetRole | do.Go)] == [do.SetRole]
    assert promoted(mind) == ["one", "two"]
    assert gos(mind) == ["one", "two"], "who died waits until its successor accepts: memory and cores are the latter's"
    mind.says("two", "s2", Phase.ACCEPTING)
    assert gos(mind) == ["one", "two", "one"]
    mind.start("one", "s3")
    assert mind["one"].role is Role.WARM
    assert promoted(mind) == ["one", "two"]


def test_the_process_that_accepts_is_told_on_the_short_way() -> None:
    mind, first, second = with_standby()
    front = mind.new()
    mind.post(events.RankConnected(conn=front, uid="uid-two", server="s2", rank=4))
    mind.post(events.ListenerAsked(conn=front, re=1))
    mind.die(first)
    assert mind.of(do.Promote) == [do.Promote(conn=front, term=2)]
    assert mind.slot.front_of("s2") == front != second
    mind.says("two", "s2", Phase.ACCEPTING)
    assert successor(mind.slot, mind["one"]) == ("adopt", front)


def test_a_hint_promotes_before_the_kernel_has_freed_the_memory() -> None:
    mind, first, _ = with_standby(capacity=120)
    mind.post(events.DeathHinted(conn=first))
    assert promoted(mind) == ["one", "two"]
    mind.says("two", "s2", Phase.ACCEPTING)
    assert gos(mind) == ["one", "two"], "its plan still takes memory"
    mind.die(first)
    assert gos(mind) == ["one", "two", "one"]


def test_a_standby_that_dies_is_replaced() -> None:
    mind, _, second = with_standby()
    mind.die(second)
    assert gos(mind) == ["one", "two", "two"]
    assert promoted(mind) == ["one"]


def test_one_too_many_is_drained_when_less_is_asked_for() -> None:
    mind, _, _ = with_standby()
    mind.spec(standbys=0)
    assert drained(mind) == ["two"]


def test_handover_promotes_first_and_drains_the_old_and_its_standby() -> None:
    mind, first, _ = with_standby()
    mind.engine("new", plan=10, revision=NEW)
    mind.spec(revision=NEW)
    assert drained(mind) == [], "the old revision keeps its standby until the new one serves"
    mind.wish("new")
    mind.serve("new", "s3")
    assert promoted(mind) == ["one", "new"]
    assert sorted(drained(mind)) == ["one", "two"]
    mind.engine("newer", plan=10, revision=NEW)
    mind.die(first)
    assert gos(mind)[-1] == "newer"


def test_the_standby_gives_way_so_that_a_handover_need_not_become_a_swap() -> None:
    mind, _, second = with_standby(capacity=125)
    mind.engine("new", plan=10, revision=NEW)
    mind.wish("new")
    assert drained(mind) == ["two"]
    assert gos(mind) == ["one", "two"]
    mind.die(second)
    assert gos(mind) == ["one", "two", "new"], "and not the standby again"
    mind.serve("new", "s3")
    assert drained(mind) == ["two", "one"]


def test_swap_drains_everybody_when_nothing_else_makes_the_room() -> None:
    mind, _, _ = with_standby(capacity=125)
    mind.engine("new", plan=20, revision=NEW)
    mind.wish("new")
    assert sorted(drained(mind)) == ["one", "two"]


def test_no_standby_is_started_while_a_wish_is_under_way() -> None:
    mind = Mind(standbys=1)
    mind.keeper()
    mind.engine("one", plan=10)
    mind.serve("one", "s1")
    mind.engine("new", plan=10, revision=NEW)
    mind.wish("new")
    mind.engine("two", plan=10)
    assert gos(mind) == ["one", "new"]


def test_a_slot_that_ends_keeps_no_standby() -> None:
    mind, _, _ = with_standby()
    mind.spec(leaving=True)
    assert sorted(drained(mind)) == ["one", "two"]


@pytest.mark.parametrize(("role", "cause"), [*product(Role, Cause)])
def test_only_a_warm_engine_ever_becomes_active(role: Role, cause: Cause) -> None:
    after = moved(Launcher(uid="u", pod="p", role=role), cause)
    if after.role is Role.ACTIVE and role is not Role.ACTIVE:
        assert (role, cause) == (Role.WARM, Cause.PROMOTE)
    assert TRANSITIONS.get((role, Cause.DIED), Role.GATED) is Role.GATED
