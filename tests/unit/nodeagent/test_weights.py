"""The life of a weight set: stored, sealed, backed up, dropped with every acknowledgement."""

from __future__ import annotations

import pytest
from tests.support.slot_mind import NEW, A, B, C, Mind

from ling_nodeagent import decisions as do
from ling_nodeagent import events, weights
from ling_nodeagent.facts import AGENT, Phase, Role, SetState


def filling() -> tuple[Mind, int, int]:
    """A slot whose engine `one` has been told to fill A: mind, keeper's and rank's connection."""
    mind = Mind()
    keeper = mind.keeper()
    mind.engine("one")
    rank = mind.fork("one", "s1")
    assert mind.attach("one", "s1") == do.Fill(sets=(A.set,), granted=())
    return mind, keeper, rank


def test_stored_is_answered_when_the_keeper_holds_the_part() -> None:
    mind, keeper, rank = filling()
    out = mind.deposit(rank, stored=False)
    assert out == [do.KeepPart(conn=keeper, set=A.set, part=0)]
    out = mind.post(events.Stored(conn=keeper, set=A.set, part=0))
    assert out == [do.Answer(conn=rank, re=1, op="stored")]


def test_deposit_waits_while_the_keeper_is_away() -> None:
    mind, keeper, rank = filling()
    mind.post(events.Disconnected(conn=keeper))
    assert mind.deposit(rank, stored=False) == []
    second = mind.keeper()
    assert do.KeepPart(conn=second, set=A.set, part=0) in mind.said
    assert mind.post(events.Stored(conn=second, set=A.set, part=0)) == [do.Answer(conn=rank, re=1, op="stored")]


def test_stored_of_a_former_keeper_counts_no_more() -> None:
    mind, keeper, rank = filling()
    mind.deposit(rank, stored=False)
    mind.post(events.Disconnected(conn=keeper))
    mind.keeper()
    assert mind.post(events.Stored(conn=keeper, set=A.set, part=0)) == []


def test_two_parts_are_answered_when_both_are_stored() -> None:
    mind, keeper, rank = filling()
    for number, last in ((0, False), (1, True)):
        mind.post(events.Deposited(conn=rank, re=5, set=A.set, kind="memfd", part=number, sizes=(50,), last=last))
    assert mind.post(events.Stored(conn=keeper, set=A.set, part=1)) == []
    assert mind.post(events.Stored(conn=keeper, set=A.set, part=0)) == [do.Answer(conn=rank, re=5, op="stored")]


def test_sealed_is_answered_when_the_keeper_holds_the_manifest() -> None:
    mind, keeper, rank = filling()
    mind.engine("two")
    mind.deposit(rank)
    out = mind.post(events.Sealed(conn=rank, re=2, set=A.set))
    backups = {mind["one"].conn, mind["two"].conn}
    assert out[0] == do.KeepManifest(conn=keeper, set=A.set)
    assert {each.conn for each in out if isinstance(each, do.BackUp)} == backups
    out = mind.post(events.ManifestStored(conn=keeper, set=A.set))
    assert out == [do.Answer(conn=rank, re=2, op="sealed")]
    assert mind.slot.sets[A.set].attached == {"s1"}
    assert mind.slot.sets[A.set].holders == {AGENT, keeper, *backups}


@pytest.mark.parametrize(
    ("name", "server", "stored", "deposit", "seal"),
    [
        (A.set, "s1", True, True, True),
        (A.set, "s1", False, True, False),
        (A.set, "s2", True, False, False),
        (B.set, "s1", True, False, False),
    ],
    ids=["filler", "not stored yet", "another server", "another set"],
)
def test_only_the_filler_deposits_and_seals(name: str, server: str, stored: bool, deposit: bool, seal: bool) -> None:
    mind, _, rank = filling()
    mind.deposit(rank, stored=stored)
    assert (weights.may_fill(mind.slot, name, server) == "") is deposit
    assert (weights.may_seal(mind.slot, name, server) == "") is seal


def test_no_more_is_deposited_than_the_slot_has_room_for() -> None:
    mind, _, _ = filling()
    assert weights.may_deposit(mind.slot, A.set, "s1", 1000) == ""
    assert "more than the capacity" in weights.may_deposit(mind.slot, A.set, "s1", 1001)


def test_filler_that_dies_leaves_nothing_and_the_next_fills() -> None:
    mind, keeper, rank = filling()
    mind.engine("two", serves=False)
    mind.fork("two", "s2")
    assert isinstance(mind.attach("two", "s2"), do.Wait)
    mind.deposit(rank)
    mind.die(rank)
    assert mind.of(do.DropSet)[-1].conns == (keeper,)
    assert isinstance(mind.answer("two"), do.Wait)
    mind.post(events.Dropped(conn=keeper, set=A.set))
    assert mind.answer("two") == do.Fill(sets=(A.set,), granted=())
    assert mind.slot.sets[A.set].parts == ()


def test_refused_seal_drops_the_set_when_the_filler_is_dead() -> None:
    mind, keeper, rank = filling()
    mind.deposit(rank)
    mind.post(events.SealRefused(conn=rank, set=A.set, reason="a writer is left"))
    mind.post(events.Dropped(conn=keeper, set=A.set))
    assert mind.slot.sets[A.set].state is SetState.DROPPING  # the filler still maps it
    mind.die(rank)
    assert A.set not in mind.slot.sets


def test_keeper_that_cannot_store_ends_the_fill_with_its_reason() -> None:
    mind, keeper, rank = filling()
    mind.deposit(rank, stored=False)
    out = mind.post(events.StoreFailed(conn=keeper, set=A.set, reason="limit"))
    (error,) = [each for each in out if isinstance(each, do.AnswerError)]
    assert (error.conn, error.re) == (rank, 1)
    assert "limit" in error.reason


def sealed(**changes: int) -> tuple[Mind, int, int]:
    """`one` accepts with A: mind, keeper's and rank's connection."""
    mind = Mind(**changes)
    keeper = mind.keeper()
    mind.engine("one", plan=10)
    return mind, keeper, mind.serve("one", "s1")


def test_memory_is_free_only_when_every_holder_has_acknowledged() -> None:
    mind, keeper, rank = sealed()
    mind.engine("two", [B], plan=0, serves=False)
    holders = (keeper, mind["one"].conn, mind["two"].conn)
    mind.spec(leaving=True)
    mind.die(rank)
    assert set(mind.of(do.DropSet)[-1].conns) == set(holders)
    for conn in holders:
        assert mind.slot.sets[A.set].state is SetState.DROPPING
        mind.post(events.Dropped(conn=conn, set=A.set))
    assert mind.slot.sets == {}


def test_death_of_a_holder_is_its_acknowledgement() -> None:
    mind, keeper, rank = sealed()
    mind.spec(leaving=True)
    mind.die(rank)
    mind.post(events.Dropped(conn=keeper, set=A.set))
    conn = mind["one"].conn
    mind.post(events.Disconnected(conn=conn))
    assert A.set in mind.slot.sets  # the process may live and hold it
    mind.die(conn)
    assert mind.slot.sets == {}


def test_holder_that_comes_back_with_a_set_being_dropped_is_told_again() -> None:
    mind, keeper, rank = sealed()
    mind.spec(leaving=True)
    conn = mind["one"].conn
    mind.post(events.Disconnected(conn=conn))
    mind.die(rank)
    mind.post(events.Dropped(conn=keeper, set=A.set))
    again = mind.new()
    mind.post(events.LauncherConnected(conn=again, uid="uid-one", pod="one"))
    mind.post(events.Has(conn=again, set=A.set, kind="memfd", sealed=True, parts=((100,),)))
    assert mind.of(do.DropSet)[-1].conns == (again,)
    mind.post(events.Ready(conn=again))
    mind.post(events.Dropped(conn=again, set=A.set))
    assert mind.slot.sets == {}


def test_new_keeper_is_given_what_it_lacks() -> None:
    mind, keeper, _ = sealed()
    mind.post(events.Disconnected(conn=keeper))
    second = mind.keeper()
    assert do.BackUp(conn=second, set=A.set) in mind.said
    assert do.KeepManifest(conn=second, set=A.set) not in mind.said


def test_keeper_that_has_everything_is_given_nothing() -> None:
    mind, keeper, _ = sealed()
    mind.post(events.Disconnected(conn=keeper))
    second = mind.keeper(ready=False)
    mind.post(events.Has(conn=second, set=A.set, kind="memfd", sealed=True, parts=((100,),)))
    mind.post(events.Ready(conn=second))
    assert do.BackUp(conn=second, set=A.set) not in mind.said
    assert mind.slot.sets[A.set].holders == {AGENT, second, mind["one"].conn}


def test_unused_set_goes_when_the_wanted_revision_is_active_without_it() -> None:
    mind, _, rank = sealed()
    mind.engine("two", [B], plan=10, revision=NEW)
    mind.spec(revision=NEW)
    mind.wish("two")
    mind.serve("two", "s2", [B])
    mind.die(rank)
    assert mind.of(do.DropSet) == []  # the old launcher still names it
    mind.post(events.StreamGone(stream=mind["one"].stream))
    assert mind.of(do.DropSet) == []
    mind.later(10)
    assert [each.set for each in mind.of(do.DropSet)] == [A.set]
    assert B.set in mind.slot.sets


def test_set_that_the_active_of_an_old_revision_lacks_stays() -> None:
    mind, _, rank = sealed()
    mind.die(rank)
    mind.post(events.StreamGone(stream=mind["one"].stream))
    mind.later(60)
    assert mind.of(do.DropSet) == []


def test_room_is_made_from_sets_nobody_names_first() -> None:
    mind, _, rank = sealed(capacity=310)
    mind.engine("two", [B], serves=False)
    mind.die(mind.start("two", "s2", [B]))
    mind.engine("two", [A], serves=False)  # B is named by nobody now
    mind.engine("three", [C], plan=150, revision=NEW)
    mind.wish("three")
    assert [each.set for each in mind.of(do.DropSet)] == [B.set]
    assert rank in mind.slot.ranks
    assert mind["one"].role is Role.DRAINING or mind["one"].accepting


def test_nothing_is_dropped_while_recovering() -> None:
    mind = Mind(recovering=True)
    keeper = mind.keeper(ready=False)
    mind.post(events.Has(conn=keeper, set=A.set, kind="memfd", sealed=False, parts=((100,),)))
    mind.post(events.Ready(conn=keeper))
    mind.know("one")
    mind.later(2)
    assert mind.slot.sets[A.set].state is SetState.FILLING
    mind.later(8)
    assert mind.of(do.DropSet)[-1].reason == "its filler died before it was sealed"


def test_live_filler_goes_on_under_a_new_agent() -> None:
    mind = Mind(recovering=True)
    keeper = mind.keeper(ready=False)
    mind.post(events.Has(conn=keeper, set=A.set, kind="memfd", sealed=False, parts=((100,),)))
    mind.post(events.Ready(conn=keeper))
    mind.engine("one", server="s1", phase=Phase.FILLING)
    rank = mind.new()
    mind.post(events.RankConnected(conn=rank, uid="uid-one", server="s1", rank=0))
    assert isinstance(mind.attach("one", "s1"), do.Wait)
    mind.later(1)
    assert mind.answer("one") == do.Fill(sets=(A.set,), granted=())
    assert mind.deposit(rank)[-1] == do.Answer(conn=rank, re=1, op="stored")
    assert mind.seal(rank)[-1] == do.Answer(conn=rank, re=2, op="sealed")
    assert mind.of(do.DropSet) == []


def test_attached_server_keeps_its_set_under_a_new_agent() -> None:
    mind = Mind(recovering=True)
    mind.engine("one", role=Role.ACTIVE, term=3, server="s1", phase=Phase.ACCEPTING)
    keeper = mind.keeper(ready=False)
    mind.post(events.Has(conn=keeper, set=A.set, kind="memfd", sealed=True, parts=((100,),)))
    mind.post(events.Ready(conn=keeper))
    assert mind.slot.sets[A.set].attached == {"s1"}


def test_filler_may_seal_what_a_dead_keeper_stored_and_is_answered_by_the_next() -> None:
    mind, keeper, rank = filling()
    mind.deposit(rank)
    mind.die(keeper)
    assert weights.may_seal(mind.slot, A.set, "s1") == ""
    mind.post(events.Sealed(conn=rank, re=2, set=A.set))
    assert do.Answer(conn=rank, re=2, op="sealed") not in mind.said
    second = mind.keeper()
    assert do.BackUp(conn=second, set=A.set) in mind.said
    assert do.Answer(conn=rank, re=2, op="sealed") in mind.said


def test_filler_whose_agent_and_keeper_died_together_goes_on_and_others_wait() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("two", server="s2", phase=Phase.STARTED)
    rank = mind.new()
    mind.post(events.RankConnected(conn=rank, uid="uid-one", server="s1", rank=0))
    mind.engine("one", server="s1", phase=Phase.FILLING)
    mind.attach("two", "s2")
    mind.attach("one", "s1")
    mind.later(2)
    assert mind.answer("one") == do.Fill(sets=(A.set,), granted=())
    assert isinstance(mind.answer("two"), do.Wait)
    mind.die(rank)
    assert mind.answer("two") == do.Fill(sets=(A.set,), granted=())
