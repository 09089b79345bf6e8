"""Answers to attach requests, for the whole cohort at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.slot_mind import OLD, A, B, Mind

from ling_api.identity import Identity, set_id
from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.facts import Phase, Wanted


def room(**changes: int) -> Mind:
    mind = Mind(**changes)
    mind.keeper()
    return mind


def asker(mind: Mind, pod: str, server: str, sets: tuple[Wanted, ...] = (A,)) -> int:
    """A launcher that fills or attaches once, with its server started; returns the rank's connection."""
    mind.engine(pod, sets, serves=False)
    return mind.fork(pod, server)


def test_absent_set_is_filled_by_the_first_and_waited_for_by_others() -> None:
    mind = room()
    rank = asker(mind, "one", "s1")
    asker(mind, "two", "s2")
    asker(mind, "three", "s3")
    assert mind.attach("one", "s1") == do.Fill(sets=(A.set,), granted=())
    for pod, server in (("two", "s2"), ("three", "s3")):
        answer = mind.attach(pod, server)
        assert isinstance(answer, do.Wait)
        assert "s1" in answer.reason
    mind.deposit(rank)
    mind.seal(rank)
    assert mind.answer("two") == mind.answer("three") == do.Granted(sets=(A.set,))
    assert mind.slot.sets[A.set].attached == {"s1", "s2", "s3"}


def test_next_in_line_fills_in_order_of_arrival() -> None:
    mind = room()
    rank = asker(mind, "one", "s1")
    asker(mind, "three", "s3")
    asker(mind, "two", "s2")
    for pod, server in (("one", "s1"), ("two", "s2"), ("three", "s3")):
        mind.attach(pod, server)
    mind.die(rank)
    assert isinstance(mind.answer("two"), do.Fill)
    assert isinstance(mind.answer("three"), do.Wait)


def test_waiters_see_progress_in_steps() -> None:
    mind = room()
    asker(mind, "one", "s1")
    asker(mind, "two", "s2")
    mind.attach("one", "s1")
    mind.attach("two", "s2")
    seen = [mind.answer("two").progress]
    for progress in (0.001, 0.5, 0.505, 0.9):
        mind.says("one", "s1", Phase.FILLING, progress=progress)
        seen.append(mind.answer("two").progress)
    assert seen == [0, 0, 0.5, 0.5, 0.9]


def test_cohort_fills_what_is_missing_and_fetches_the_rest() -> None:
    mind = room()
    rank = asker(mind, "one", "s1")
    mind.attach("one", "s1")
    mind.deposit(rank)
    mind.seal(rank)
    asker(mind, "two", "s2", (A, B))
    assert mind.attach("two", "s2", (A, B)) == do.Fill(sets=(B.set,), granted=(A.set,))


def test_cohort_waits_whole_so_that_no_two_wait_for_each_other() -> None:
    mind = room()
    asker(mind, "one", "s1", (A,))
    asker(mind, "two", "s2", (A, B))
    asker(mind, "three", "s3", (B,))
    mind.attach("one", "s1", (A,))
    assert isinstance(mind.attach("two", "s2", (A, B)), do.Wait)
    assert isinstance(mind.attach("three", "s3", (B,)), do.Fill)


def test_filler_that_asks_again_is_told_to_fill_again() -> None:
    mind = room()
    asker(mind, "one", "s1")
    mind.attach("one", "s1")
    assert mind.attach("one", "s1", request=2) == do.Fill(sets=(A.set,), granted=())


def test_request_of_a_dead_server_gets_no_answer() -> None:
    mind = room()
    asker(mind, "one", "s1")
    rank = asker(mind, "two", "s2")
    mind.attach("one", "s1")
    mind.attach("two", "s2")
    mind.die(rank)
    assert mind["two"].asks == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"revisions": frozenset({"cccccccc"})}, "names the revisions cccccccc, not aaaaaaaa"),
        ({"leaving": True}, "is being given up"),
        ({"capacity": 99}, "which is 1 bytes more than the capacity of 99 bytes"),
    ],
    ids=["revision", "leaving", "room"],
)
def test_refused(change: dict[str, object], words: str) -> None:
    mind = room()
    asker(mind, "one", "s1")
    mind.spec(**change)
    answer = mind.attach("one", "s1")
    assert isinstance(answer, do.Refused)
    assert words in answer.reason


@pytest.mark.parametrize(
    ("server", "sets", "words"),
    [("s9", (A,), "is not the one"), ("s1", (B,), "does not name the set"), ("s1", (), "does not name the set (none)")],
    ids=["foreign server", "unnamed set", "no set"],
)
def test_refused_as_nonsense(server: str, sets: tuple[Wanted, ...], words: str) -> None:
    mind = room()
    asker(mind, "one", "s1")
    answer = mind.attach("one", server, sets)
    assert isinstance(answer, do.Refused)
    assert words in answer.reason


def test_everybody_waits_while_the_agent_recovers() -> None:
    mind = Mind(recovering=True)
    mind.keeper()
    asker(mind, "one", "s1")
    assert mind.attach("one", "s1") == do.Wait(reason="the agent is recovering", progress=0)
    mind.later(1)
    assert isinstance(mind.answer("one"), do.Fill)


FIELDS = {"path": "/m", "dtype": "bfloat16", "tp": 2, "revision": OLD}


def named(**fields: object) -> Wanted:
    identity = Identity.of("target", {**FIELDS, **fields})
    return replace(A, set=set_id(identity.digest, 0), identity=identity.to_bytes())


@pytest.mark.parametrize("field", FIELDS)
def test_identity_that_differs_in_one_field_is_filled_and_the_field_is_named(field: str) -> None:
    mind = room()
    rank = asker(mind, "one", "s1", (named(),))
    mind.attach("one", "s1", (named(),))
    mind.deposit(rank, named())
    mind.seal(rank, named())
    other = named(**{field: 7})
    asker(mind, "two", "s2", (other,))
    assert mind.attach("two", "s2", (other,)) == do.Fill(sets=(other.set,), granted=())
    assert f"{field} is 7" in mind.slot.message


def test_stream_that_ends_takes_its_requests_along() -> None:
    mind = room()
    asker(mind, "one", "s1")
    asker(mind, "two", "s2")
    mind.attach("one", "s1")
    mind.attach("two", "s2")
    mind.post(events.StreamGone(stream=mind["two"].stream))
    assert mind["two"].asks == ()


def test_more_open_requests_than_ranks_could_have_are_refused() -> None:
    mind = room()
    asker(mind, "one", "s1")
    asker(mind, "two", "s2")
    mind.attach("one", "s1")
    for request in range(1, 34):
        mind.attach("two", "s2", request=request)
    assert isinstance(mind.answer("two", 1), do.Wait)
    assert mind.answer("two", 33) == do.Refused(reason="32 requests of this launcher wait already")
    assert len(mind["two"].asks) == 32
    assert mind.later(1) == []
