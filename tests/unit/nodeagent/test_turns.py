"""A standby is told when the active engine is busy, and when it has been idle for a moment."""

from __future__ import annotations

from tests.unit.nodeagent.test_health import performs
from tests.unit.nodeagent.test_standby import with_standby

from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.facts import Phase


def test_busy_while_a_request_is_in_flight_and_a_moment_longer() -> None:
    mind, _, _ = with_standby()
    assert mind.of(do.Turn) == []
    performs(mind, "one", in_flight=1)
    assert [each.busy for each in mind.of(do.Turn)] == [True]
    assert {each.stream for each in mind.of(do.Turn)} == {mind["two"].stream}
    performs(mind, "one", in_flight=0, requests=1, output_tokens=2)
    mind.later(0.9)
    assert len(mind.of(do.Turn)) == 1
    mind.later(0.1)
    assert [each.busy for each in mind.of(do.Turn)] == [True, False]


def test_a_server_that_starts_meanwhile_is_told_and_who_is_promoted_is_freed() -> None:
    mind, first, second = with_standby()
    performs(mind, "one", in_flight=1)
    mind.die(second)
    mind.says("two", "s3", Phase.STARTED)
    assert [each.busy for each in mind.of(do.Turn)] == [True, True]
    mind.start("two", "s3")
    mind.post(events.DeathHinted(conn=first))
    assert mind.of(do.Turn)[-1] == do.Turn(stream=mind["two"].stream, busy=False)
