"""The machine as a whole: every event on every state of a set and of a slot, recovering, waking up."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from tests.support.slot_mind import A, Mind, caller, spec

from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.decide import REDUCERS, decide, reduce
from ling_nodeagent.facts import Performance, Phase, Role, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

STRANGER = 9999  # a connection or stream that nobody has
SAMPLES: dict[type, events.Event] = {
    type(each): each
    for each in (
        events.SpecChanged(spec=spec()),
        events.CallersChanged(callers=(caller("one"),)),
        events.KeeperHello(conn=STRANGER, uid="uid-keeper", netns=7),
        events.LauncherConnected(conn=STRANGER, uid="uid-x", pod="x"),
        events.RankConnected(conn=STRANGER, uid="uid-x", server="sx", rank=0),
        events.Has(conn=STRANGER, set=A.set, kind="memfd", sealed=True, parts=((100,),)),
        events.TermRemembered(term=5),
        events.Ready(conn=STRANGER),
        events.Disconnected(conn=STRANGER),
        events.PeerDead(conn=STRANGER),
        events.Stored(conn=STRANGER, set=A.set, part=0),
        events.ManifestStored(conn=STRANGER, set=A.set),
        events.StoreFailed(conn=STRANGER, set="none:0", reason="r"),
        events.Dropped(conn=STRANGER, set=A.set),
        events.AgentClosed(set="none:0"),
        events.KeeperLeaving(conn=STRANGER),
        events.ListenerHeld(conn=STRANGER, netns=7),
        events.NoListener(conn=STRANGER, reason="r"),
        events.ListenerAsked(conn=STRANGER, re=1),
        events.Deposited(conn=STRANGER, re=1, set="none:0", kind="memfd", part=0, sizes=(1,), last=True),
        events.Mapped(conn=STRANGER, set=A.set),
        events.Sealed(conn=STRANGER, re=1, set="none:0"),
        events.SealRefused(conn=STRANGER, set="none:0", reason="r"),
        events.LauncherHello(
            stream=STRANGER, uid="uid-x", pod="x", revision="cccccccc", serves=True, plan={}, weights=(),
            role=Role.GATED, term=0,
        ),
        events.StreamGone(stream=STRANGER),
        events.AttachAsked(stream=STRANGER, request=1, server="sx", sets=(A.set,)),
        events.ServerChanged(stream=STRANGER, server="sx", phase=Phase.STARTED),
        events.Leaving(stream=STRANGER),
        events.Performed(stream=STRANGER, performance=Performance()),
        events.DeathHinted(conn=STRANGER),
        events.QueueSeen(waiting=1),
        events.HeldUp(),
        events.Released(on=True),
    )
}  # fmt: skip


def empty() -> Mind:
    return Mind()


def gated() -> Mind:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("one")
    return mind


def filling() -> Mind:
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    mind.fork("one", "s1")
    mind.attach("one", "s1")
    return mind


def serving() -> Mind:
    mind = filling()
    (rank,) = mind.slot.ranks
    mind.deposit(rank)
    mind.seal(rank)
    for phase in (Phase.ATTACHED, Phase.WARM, Phase.ACCEPTING):
        mind.says("one", "s1", phase)
    return mind


def dropping() -> Mind:
    mind = serving()
    mind.spec(leaving=True)
    mind.die(next(iter(mind.slot.ranks)))
    return mind


STATES: tuple[Callable[[], Mind], ...] = (empty, gated, filling, serving, dropping)


def test_every_event_has_a_sample_and_a_reducer() -> None:
    assert set(SAMPLES) == set(REDUCERS) == set(get_args(events.Event))


@pytest.mark.parametrize("make", STATES)
@pytest.mark.parametrize("kind", list(SAMPLES), ids=lambda kind: str(kind.__name__))
def test_a_strangers_word_never_grants_drops_or_promotes(make: Callable[[], Mind], kind: type) -> None:
    mind = make()
    mind.said.clear()
    before = mind.slot
    mind.post(SAMPLES[kind])
    harmful = (do.AnswerAttach, do.SetRole, do.Released, do.KeepManifest)
    if kind not in (events.SpecChanged, events.CallersChanged, events.Released):  # the directory's word, and root's
        assert not [each for each in mind.said if isinstance(each, harmful)]
    if kind is not events.Has:
        assert mind.slot.sets.keys() == before.sets.keys()


@pytest.mark.parametrize("make", STATES)
def test_deciding_again_decides_nothing(make: Callable[[], Mind]) -> None:
    mind = make()
    slot, out, _ = decide(mind.slot, mind.now)
    assert out == ()
    assert slot == mind.slot


def test_reduce_leaves_the_facts_that_it_was_given() -> None:
    mind = serving()
    before = mind.slot
    reduce(before, events.PeerDead(conn=next(iter(before.ranks))), mind.now)
    assert before.launchers["uid-one"].role is Role.ACTIVE


@pytest.mark.parametrize(
    ("back", "seconds", "recovering"),
    [(True, 0.9, True), (True, 1.0, False), (False, 1.0, True), (False, 9.9, True), (False, 10.0, False)],
    ids=["at least 1 s", "all are back", "one is missing", "still missing", "at most 10 s"],
)
def test_recovering_ends_when_all_are_back_or_had_their_time(back: bool, seconds: float, recovering: bool) -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.know("one")
    if back:
        mind.engine("one")
    mind.later(seconds)
    assert mind.slot.recovering is recovering


def test_recovering_waits_for_the_launchers_role_and_not_for_its_connection() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.know("one")
    mind.post(events.LauncherConnected(conn=mind.new(), uid="uid-one", pod="one"))
    mind.later(5)
    assert mind.slot.recovering


@pytest.mark.parametrize(("seconds", "recovering"), [(9.9, True), (10.0, False)])
def test_a_kubelet_that_knows_no_pod_yet_ends_no_recovering(seconds: float, recovering: bool) -> None:
    mind = Mind(recovering=True)
    mind.later(seconds)
    assert mind.slot.recovering is recovering


def test_nothing_changes_roles_while_recovering() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("one", role=Role.WARM, server="s1", phase=Phase.WARM)
    assert mind.of(do.SetRole) == mind.of(do.Go) == []
    (welcome,) = mind.of(do.Welcome)
    assert welcome.recovering
    mind.later(1)
    (role,) = mind.of(do.SetRole)
    assert (role.role, role.term) == (Role.ACTIVE, 1)


def test_a_new_agent_goes_on_from_the_highest_term() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    mind.engine("one", role=Role.WARM, term=41, server="s1", phase=Phase.WARM)
    mind.later(1)
    assert mind.of(do.SetRole)[-1].term == 42


def test_without_the_lingslot_nothing_is_let_go() -> None:
    slot = Slot(name="ns/demo-0", since=0.0)
    for event in (
        events.LauncherConnected(conn=1, uid="uid-one", pod="one"),
        events.Ready(conn=1),
        events.LauncherHello(
            stream=2, uid="uid-one", pod="one", revision="aaaaaaaa", serves=True, plan={}, weights=(A,),
            role=Role.GATED, term=0,
        ),
    ):  # fmt: skip
        slot = reduce(slot, event, 20.0)
    slot, out, _ = decide(slot, 20.0)
    assert [type(each) for each in out] == [do.Welcome]


def test_the_next_respawn_wakes_the_agent() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    mind.die(mind.fork("one", "s1"))
    mind.die(mind.fork("one", "s2"))
    assert mind.wake == mind.now + 1.0


def test_pod_that_is_gone_is_forgotten_with_its_last_connection() -> None:
    mind = serving()
    conn, stream = mind["one"].conn, mind["one"].stream
    mind.forget("one")
    mind.post(events.StreamGone(stream=stream))
    mind.post(events.Disconnected(conn=conn))
    assert "uid-one" in mind.slot.launchers  # its server lives
    mind.die(next(iter(mind.slot.ranks)))
    assert "uid-one" not in mind.slot.launchers
