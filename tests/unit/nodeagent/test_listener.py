"""The listening socket and the word for the probes."""

from __future__ import annotations

from tests.support.slot_mind import Mind

from ling_nodeagent import decisions as do
from ling_nodeagent import events, listener
from ling_nodeagent.facts import Phase, Role


def test_keeper_is_told_to_listen_once_nobody_has_it() -> None:
    mind = Mind(recovering=True)
    conn = mind.keeper(listens=False)
    assert mind.of(do.Listen) == []
    mind.later(1)
    assert mind.of(do.Listen) == [do.Listen(conn=conn)]
    mind.post(events.ListenerHeld(conn=conn, netns=7))
    mind.later(60)
    assert len(mind.of(do.Listen)) == 1


def test_keeper_that_cannot_bind_is_told_again_until_somebody_gives_the_listener_back() -> None:
    mind = Mind()
    keeper = mind.keeper(listens=False)
    mind.post(events.NoListener(conn=keeper, reason="in use"))
    mind.later(1)
    assert len(mind.of(do.Listen)) == 2
    one = mind.engine("one")
    mind.post(events.ListenerHeld(conn=one.conn, netns=7))
    assert mind.of(do.SendListener) == [do.SendListener(conn=keeper)]
    mind.later(60)
    assert len(mind.of(do.Listen)) == 2


def test_launchers_get_copies_and_ranks_get_it_when_they_ask() -> None:
    mind = Mind()
    one = mind.engine("one")
    rank = mind.fork("one", "s1")
    mind.post(events.ListenerAsked(conn=rank, re=4))
    assert mind.of(do.SendListener) == []
    mind.keeper()
    assert do.SendListener(conn=one.conn) in mind.said
    assert do.SendListener(conn=rank, re=4) in mind.said
    assert len(mind.of(do.SendListener)) == 2


def test_listener_of_another_namespace_is_dropped_everywhere() -> None:
    mind = Mind()
    first = mind.keeper(netns=7)
    one = mind.engine("one")
    rank = mind.fork("one", "s1")
    mind.post(events.ListenerAsked(conn=rank, re=4))
    mind.post(events.Disconnected(conn=first))
    second = mind.keeper(netns=8, listens=False)
    assert len(mind.of(do.DropListener)) == 1
    assert mind.of(do.Listen)[-1] == do.Listen(conn=second)
    mind.said.clear()
    mind.post(events.ListenerHeld(conn=second, netns=8))
    assert {(each.conn, each.re) for each in mind.of(do.SendListener)} == {(one.conn, None), (rank, None)}


def test_which_listener_the_agent_takes() -> None:
    mind = Mind()
    assert listener.wanted(mind.slot, 7)
    mind.keeper(netns=7, listens=False)
    assert listener.wanted(mind.slot, 7)
    assert not listener.wanted(mind.slot, 8)
    assert mind.slot.keeper is not None
    mind.post(events.ListenerHeld(conn=mind.slot.keeper.conn, netns=7))
    assert not listener.wanted(mind.slot, 7)


def word(mind: Mind) -> tuple[bool, str]:
    last = mind.of(do.Word)[-1]
    return last.ready, last.message


def test_word_follows_acceptors_and_holds_for_successors() -> None:
    mind = Mind()
    mind.keeper()
    assert word(mind) == (False, "nobody accepts")
    mind.engine("one")
    rank = mind.serve("one", "s1")
    assert word(mind) == (True, "one accepts")
    mind.later(1000)
    mind.die(rank)
    assert word(mind) == (True, "nobody accepts; connections are held for a successor")
    assert mind.wake is not None
    mind.later(30)
    assert word(mind) == (False, "nobody accepts")


def test_last_word_stands_while_a_new_agent_learns_who_is_there() -> None:
    mind = Mind(recovering=True)
    mind.know("one")
    mind.keeper()
    assert mind.of(do.Word) == []
    mind.engine("one", role=Role.ACTIVE, term=3, server="s1", phase=Phase.ACCEPTING)
    assert word(mind) == (True, "one accepts")


def test_a_new_agent_that_meets_nobody_says_so_when_it_has_waited() -> None:
    mind = Mind(recovering=True)
    mind.know("one")
    mind.keeper()
    mind.later(10)
    assert word(mind) == (False, "nobody accepts")


def test_word_does_not_hold_when_nobody_can_follow() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    rank = mind.serve("one", "s1")
    mind.post(events.Leaving(stream=mind["one"].stream))
    mind.die(rank)
    assert not word(mind)[0]


def test_members_are_told_when_they_change() -> None:
    mind = Mind()
    mind.keeper()
    before = len(mind.of(do.Members))
    mind.engine("one")
    mind.says("one", "s1", Phase.STARTED)
    (members,) = mind.of(do.Members)[before:]
    assert {each.pod for each in members.callers} == {"keeper", "one"}


def test_the_term_is_told_to_the_keeper_and_taken_from_it() -> None:
    mind = Mind()
    keeper = mind.keeper()
    mind.post(events.TermRemembered(term=7))
    assert mind.slot.term == 7
    told = mind.of(do.Members)[-1]
    assert (told.conn, told.term) == (keeper, 7)
    mind.post(events.TermRemembered(term=3))
    assert mind.slot.term == 7
