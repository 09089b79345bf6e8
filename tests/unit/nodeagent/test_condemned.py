"""A set that an engine found wrong is given to nobody again, and filled anew once its last reader is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.slot_mind import NEW, A, B, Mind

from ling_nodeagent import condemned, events
from ling_nodeagent import decisions as do
from ling_nodeagent.facts import Phase, Role, SetState
from ling_nodeagent.ledger import Ledger
from ling_nodeagent.status import build_status

if TYPE_CHECKING:
    from pathlib import Path

CHECK_FAILED, DEVICE_ERROR, KILLED = 5, 6, -9


def died(mind: Mind, pod: str, server: str, conn: int, code: int, *, late: bool) -> None:
    """The launcher's word and the kernel's, in either order."""
    if not late:
        mind.says(pod, server, Phase.EXITED, exit_code=code)
    mind.die(conn)
    if late:
        mind.says(pod, server, Phase.EXITED, exit_code=code)


def degraded(mind: Mind) -> tuple[str, str]:
    status = build_status(mind.slot, node="n", previous=None, now=1e9, monotonic=mind.now)
    found = next(one for one in status["conditions"] if one["type"] == "Degraded")
    return found["status"], found["reason"]


@pytest.fixture
def mind() -> Mind:
    """A set that was filled by an engine which has ended since; a second engine is there."""
    mind = Mind()
    mind.keeper()
    mind.engine("one")
    conn = mind.start("one", "filler")
    mind.says("one", "filler", Phase.EXITED, exit_code=0)
    mind.die(conn)
    assert mind.slot.sets[A.set].state is SetState.SEALED
    return mind


@pytest.mark.parametrize("late", [False, True], ids=["the launcher's word first", "the kernel's word first"])
def test_a_failed_check_condemns_and_the_next_cohort_fills(mind: Mind, late: bool) -> None:
    conn = mind.fork("one", "bad")
    assert isinstance(mind.attach("one", "bad"), do.Granted)
    died(mind, "one", "bad", conn, CHECK_FAILED, late=late)
    assert mind.slot.sets[A.set].state is SetState.DROPPING
    assert degraded(mind) == ("True", condemned.REASON)
    mind.drops_acknowledged()
    mind.later(1)
    mind.fork("one", "next")
    assert isinstance(mind.attach("one", "next", request=2), do.Fill)


def test_nobody_is_given_a_condemned_set_while_others_still_read_it(mind: Mind) -> None:
    reader = mind.serve("one", "reader")
    mind.engine("two")
    conn = mind.fork("two", "bad")
    mind.attach("two", "bad")
    died(mind, "two", "bad", conn, CHECK_FAILED, late=False)
    status = build_status(mind.slot, node="n", previous=None, now=1e9, monotonic=mind.now)
    assert [one["state"] for one in status["weightSets"]] == ["condemned"]
    mind.fork("two", "next")
    waits = mind.attach("two", "next", request=2)
    assert isinstance(waits, do.Wait)
    assert "condemned" in waits.reason
    mind.die(reader)
    mind.drops_acknowledged()
    assert isinstance(mind.answer("two", 2), do.Fill)


def drained(mind: Mind) -> list[str]:
    return [each.pod for each in mind.of(do.SetRole) if each.role is Role.DRAINING]


def condemned_by_a_standby() -> tuple[Mind, int]:
    """`one` serves from a set that the standby `two` found wrong; `three` has no server. The rank of `one`."""
    mind = Mind(standbys=1)
    mind.keeper()
    mind.engine("one")
    reader = mind.serve("one", "reader")
    mind.engine("two")
    conn = mind.fork("two", "bad")
    mind.attach("two", "bad")
    died(mind, "two", "bad", conn, CHECK_FAILED, late=False)
    mind.engine("three", revision=NEW)
    assert mind.slot.sets[A.set].condemned
    return mind, reader


def test_whoever_is_wished_for_and_needs_a_condemned_set_takes_the_place_of_its_reader() -> None:
    mind, reader = condemned_by_a_standby()
    assert drained(mind) == []
    mind.wish("three")
    assert drained(mind) == ["one"]
    assert "three waits: one must end first" in mind.slot.message
    assert "three" not in [each.pod for each in mind.of(do.Go)], "it could only wait"
    mind.says("one", "reader", Phase.EXITED, exit_code=0)
    mind.die(reader)
    mind.drops_acknowledged()
    assert [each.pod for each in mind.of(do.Go)][-1] == "three"
    mind.serve("three", "fresh")
    assert isinstance(mind.answer("three"), do.Fill)
    assert not mind.slot.sets[A.set].condemned
    assert mind["three"].accepting
    assert drained(mind) == ["one"]


def test_who_found_it_wrong_itself_takes_nobodys_place() -> None:
    """The fault may be its own: what serves goes on."""
    mind, _ = condemned_by_a_standby()
    mind.wish("two")
    mind.later(100)
    assert drained(mind) == []


def test_a_wish_for_other_weights_swaps_as_ever() -> None:
    mind, _ = condemned_by_a_standby()
    mind.engine("four", (B,), revision=NEW)
    mind.wish("four")
    mind.serve("four", "other", (B,))
    assert mind["four"].accepting
    assert drained(mind) == ["one"], "once a successor accepts"


@pytest.mark.parametrize(
    ("codes", "gap", "wrong"),
    [
        pytest.param((DEVICE_ERROR, DEVICE_ERROR), 59.0, True, id="two in a row"),
        pytest.param((DEVICE_ERROR, DEVICE_ERROR), 61.0, False, id="too far apart"),
        pytest.param((DEVICE_ERROR, KILLED, DEVICE_ERROR), 10.0, False, id="not in a row"),
        pytest.param((KILLED, KILLED, KILLED), 1.0, False, id="killed by somebody"),
        pytest.param((DEVICE_ERROR,), 0.0, False, id="once"),
    ],
)
def test_two_device_errors_in_a_row_condemn(mind: Mind, codes: tuple[int, ...], gap: float, wrong: bool) -> None:
    for number, code in enumerate(codes):
        conn = mind.start("one", f"s{number}")
        died(mind, "one", f"s{number}", conn, code, late=False)
        if number + 1 < len(codes):
            mind.later(gap)
    assert bool(mind.slot.condemned) == wrong


def test_only_sets_that_the_server_had_are_condemned() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one", (A, B))
    first = mind.start("one", "filler", (A, B))
    died(mind, "one", "filler", first, 0, late=False)
    conn = mind.fork("one", "bad")
    mind.attach("one", "bad", (A,))
    died(mind, "one", "bad", conn, CHECK_FAILED, late=True)
    assert mind.slot.sets[A.set].state is SetState.DROPPING
    assert mind.slot.sets[B.set].state is SetState.SEALED


def test_status_tells_of_it_for_a_while(mind: Mind) -> None:
    conn = mind.fork("one", "bad")
    mind.attach("one", "bad")
    died(mind, "one", "bad", conn, CHECK_FAILED, late=False)
    mind.drops_acknowledged()
    assert degraded(mind) == ("True", condemned.REASON)
    mind.later(condemned.SHOWN + 1)
    assert degraded(mind)[1] != condemned.REASON


def restarted(mind: Mind) -> Mind:
    """A new agent that knows of the old one what the ledger kept."""
    new = Mind(recovering=True)
    new.slot = replace(new.slot, doomed=dict(mind.slot.doomed))
    return new


def gives_back(mind: Mind, conn: int) -> None:
    mind.post(events.Has(conn=conn, set=A.set, kind="memfd", sealed=True, parts=((A.nbytes,),), identity=A.identity))


def condemned_by_one(mind: Mind) -> None:
    """While a reader of another pod still lives, so that the set stays."""
    mind.serve("one", "reader")
    mind.engine("two")
    conn = mind.fork("two", "bad")
    mind.attach("two", "bad")
    died(mind, "two", "bad", conn, CHECK_FAILED, late=False)
    assert mind.slot.sets[A.set].condemned


def test_a_new_agent_gives_nobody_what_the_old_one_condemned(mind: Mind) -> None:
    condemned_by_one(mind)
    new = restarted(mind)
    keeper = new.keeper(ready=False, listens=False)
    gives_back(new, keeper)
    assert new.slot.sets[A.set].condemned == mind.slot.sets[A.set].condemned
    new.post(events.Ready(conn=keeper))
    new.engine("three")
    new.later(30)
    new.fork("three", "next")
    new.drops_acknowledged()
    assert isinstance(new.attach("three", "next"), do.Fill)
    assert new.slot.doomed == {}, "what comes now are other bytes"
    assert not new.slot.sets[A.set].condemned


def test_what_was_never_condemned_is_given_out_by_a_new_agent(mind: Mind) -> None:
    new = restarted(mind)
    keeper = new.keeper()
    gives_back(new, keeper)
    new.engine("three")
    new.later(30)
    new.fork("three", "next")
    assert isinstance(new.attach("three", "next"), do.Granted)


def test_the_ledger_outlives_the_agent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.of("ns/a-0") == {}
    ledger.keep("ns/a-0", {A.set: "bad bytes"})
    ledger.keep("ns/b-0", {B.set: "worse"})
    ledger.keep("ns/b-0", {})
    assert Ledger(tmp_path).of("ns/a-0") == {A.set: "bad bytes"}
    assert Ledger(tmp_path).of("ns/b-0") == {}
    (tmp_path / "condemned.json").write_text('["no mapping"]')
    assert Ledger(tmp_path).of("ns/a-0") == {}
