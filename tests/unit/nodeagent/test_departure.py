"""A slot that is taken away in good order, and a node that must become empty in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.slot_mind import Mind

from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.facts import Performance, Phase, Role
from ling_nodeagent.listener import word_of

if TYPE_CHECKING:
    from collections.abc import Callable


def serving(**changes: float) -> tuple[Mind, int]:
    mind = Mind(**{"lame_duck_seconds": 15.0, **changes})
    mind.keeper()
    mind.engine("one", plan=10)
    return mind, mind.serve("one", "s1")


def drained(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.SetRole) if each.role is Role.DRAINING]


def left(mind: Mind, seconds: float) -> None:
    mind.post(events.SpecChanged(spec=mind.slot.spec, leaves_by=mind.now + seconds))


def begin(mind: Mind, how: str) -> None:
    if how == "preStop":
        assert mind.slot.keeper is not None
        mind.post(events.KeeperLeaving(conn=mind.slot.keeper.conn))
    elif how == "operator":
        mind.spec(retiring=True)
    else:
        left(mind, 1000)
        mind.post(events.Leaving(stream=mind["one"].stream))


@pytest.mark.parametrize("how", ["preStop", "operator", "engine evicted from a node that is left"])
def test_the_last_engine_accepts_for_the_lame_ducks_time(how: str) -> None:
    mind, rank = serving()
    begin(mind, how)
    mind.later(14.9)
    assert drained(mind) == []
    assert word_of(mind.slot, mind.now)[0]
    mind.later(0.1)
    assert drained(mind) == ["one"]
    mind.die(rank)
    mind.drops_acknowledged()
    assert bool(mind.slot.sets) == how.startswith("engine"), "the slot itself is not taken away yet"


def arrivals(mind: Mind, seconds: int) -> None:
    """A new client a second, for that long."""
    for _ in range(seconds):
        mind.later(1)
        count = mind["one"].performance.arrivals + 1
        mind.post(events.Performed(stream=mind["one"].stream, performance=Performance(arrivals=count)))


def evicted(mind: Mind) -> None:
    """The slot pod, by a drain."""
    left(mind, 1000)
    begin(mind, "preStop")


@pytest.mark.parametrize("how", ["preStop in a drain", "operator"])
def test_while_new_clients_come_the_lame_duck_goes_on(how: str) -> None:
    mind, _ = serving(grace_seconds=60.0)
    if how == "operator":
        begin(mind, how)
    else:
        evicted(mind)
    arrivals(mind, 20)
    mind.later(14.9)
    assert drained(mind) == []
    mind.later(0.1)
    assert drained(mind) == ["one"]


def test_clients_that_came_at_its_beginning_take_nothing_from_the_lame_duck() -> None:
    mind, _ = serving()
    arrivals(mind, 3)
    evicted(mind)
    mind.later(14.9)
    assert drained(mind) == []
    mind.later(0.1)
    assert drained(mind) == ["one"]


@pytest.mark.parametrize(
    ("how", "most"),
    [
        pytest.param(evicted, 15 + 20, id="graceSeconds more at most"),
        pytest.param(lambda mind: (left(mind, 18), begin(mind, "preStop")), 18, id="until the node's time is up"),
        pytest.param(lambda mind: (left(mind, 3), begin(mind, "preStop")), 15, id="the lame duck's own time stays"),
        pytest.param(lambda mind: begin(mind, "preStop"), 15, id="by itself no one follows elsewhere"),
    ],
)
def test_clients_that_never_stop_keep_nobody_for_ever(how: Callable[[Mind], object], most: int) -> None:
    mind, _ = serving(grace_seconds=20.0)
    how(mind)
    arrivals(mind, most - 1)
    assert drained(mind) == []
    arrivals(mind, 1)
    assert drained(mind) == ["one"]


def test_a_slot_that_serves_nobody_has_no_lame_duck() -> None:
    mind = Mind(lame_duck_seconds=15.0)
    keeper = mind.keeper()
    mind.post(events.KeeperLeaving(conn=keeper))
    assert mind.of(do.Released) == [do.Released(conn=keeper)]


def test_a_keeper_that_restarts_in_a_pod_that_stays_costs_nothing() -> None:
    """The kubelet runs preStop before it restarts a container, too: what the keeper holds, others hold."""
    mind, _ = serving(pod_stays=True)
    keeper = mind.slot.keeper
    assert keeper is not None
    begin(mind, "preStop")
    mind.later(14.9)
    assert mind.of(do.Released) == []
    assert mind.wake == pytest.approx(mind.now + 0.1)
    mind.later(0.1)
    assert mind.of(do.Released) == [do.Released(conn=keeper.conn)]
    mind.keeper(listens=False)
    mind.later(1000)
    assert (drained(mind), mind.of(do.DropSet), mind["one"].accepting) == ([], [], True)


@pytest.mark.parametrize(
    "say",
    [lambda mind: mind.spec(pod_stays=False), lambda mind: mind.post(events.SpecChanged(spec=None))],
    ids=["the pod is being deleted", "the slot is"],
)
def test_the_api_servers_word_may_come_after_the_kubelets(say: Callable[[Mind], object]) -> None:
    mind, _ = serving(pod_stays=True)
    begin(mind, "preStop")
    mind.later(10)
    say(mind)
    mind.later(15)
    assert drained(mind) == ["one"]
    mind.later(60)
    assert mind.of(do.Released) == [], "only when nothing of it is left"


def engine_leaves(mind: Mind) -> None:
    mind.post(events.Leaving(stream=mind["one"].stream))


def keeper_leaves(mind: Mind) -> None:
    begin(mind, "preStop")


@pytest.mark.parametrize(
    ("order", "lame"),
    [((keeper_leaves, engine_leaves), 15.0), ((engine_leaves, keeper_leaves), 0.0)],
    ids=["keeper first", "engine first"],
)
def test_a_node_that_shuts_down_ends_slot_and_engine_without_the_api_servers_word(
    order: tuple[Callable[[Mind], None], ...], lame: float
) -> None:
    mind, _ = serving(pod_stays=True)
    for leaves in order:
        leaves(mind)
    mind.later(lame)
    assert drained(mind) == ["one"]
    mind.later(60)
    assert mind.of(do.Released) == [], "only when nothing of it is left"


def test_a_deleted_slot_drains_at_once() -> None:
    mind, _ = serving()
    begin(mind, "preStop")
    mind.post(events.SpecChanged(spec=None))
    assert drained(mind) == ["one"]


def test_a_slot_that_the_operator_retired_and_deleted_keeps_its_lame_duck() -> None:
    mind, _ = serving()
    begin(mind, "operator")
    mind.later(5)
    mind.post(events.SpecChanged(spec=None))
    assert drained(mind) == []
    mind.later(10)
    assert drained(mind) == ["one"]


def test_taken_back_in_time_nothing_happens() -> None:
    mind, _ = serving()
    begin(mind, "operator")
    mind.later(5)
    mind.spec(retiring=False)
    mind.later(1000)
    assert drained(mind) == []


def test_an_engine_that_leaves_a_node_that_stays_goes_as_ever() -> None:
    mind, _ = serving()
    mind.post(events.Leaving(stream=mind["one"].stream))
    assert drained(mind) == ["one"]


def test_at_the_deadline_slot_and_engines_stop_being_ready_and_go_on_serving() -> None:
    mind, _ = serving()
    left(mind, 60)
    mind.later(59.9)
    assert word_of(mind.slot, mind.now)[0]
    assert mind.of(do.HoldBack) == []
    mind.later(0.1)
    assert not word_of(mind.slot, mind.now)[0]
    assert mind.of(do.Word)[-1].ready is False
    assert [(each.pod, each.held_back) for each in mind.of(do.HoldBack)] == [("one", True)]
    assert mind["one"].accepting
    assert drained(mind) == []


def test_a_launcher_that_comes_after_the_deadline_is_told_too() -> None:
    mind, _ = serving()
    left(mind, -1)
    mind.engine("two", plan=10)
    assert [(each.pod, each.held_back) for each in mind.of(do.HoldBack)] == [("one", True), ("two", True)]


def test_who_comes_back_is_told_again_after_its_welcome() -> None:
    mind, _ = serving()
    left(mind, -1)
    mind.post(events.StreamGone(stream=mind["one"].stream))
    stream = mind.engine("one", role=Role.ACTIVE, term=1, server="s1", phase=Phase.ACCEPTING).stream
    said = [each for each in mind.said if isinstance(each, do.Welcome | do.HoldBack) and each.stream == stream]
    assert [type(each) for each in said] == [do.Welcome, do.HoldBack]


def test_uncordon_makes_them_ready_again() -> None:
    mind, _ = serving()
    left(mind, -1)
    mind.post(events.SpecChanged(spec=mind.slot.spec))
    assert [each.held_back for each in mind.of(do.HoldBack)] == [True, False]
    assert word_of(mind.slot, mind.now)[0]


def test_time_alone_wakes_the_agent() -> None:
    mind, _ = serving()
    left(mind, 60)
    assert mind.wake is not None
    assert mind.wake <= mind.now + 60
