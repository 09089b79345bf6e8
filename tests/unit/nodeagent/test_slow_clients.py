"""An engine whose requests all wait for their clients tells a patience of 0: it is not taken for hung."""

from __future__ import annotations

from tests.unit.nodeagent.test_health import performs
from tests.unit.nodeagent.test_standby import with_standby

from ling_nodeagent import decisions as do


def test_the_patience_begins_when_the_client_is_done() -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.later(4)
    performs(mind, "one", in_flight=1, output_tokens=3, patience_ms=0.0)
    mind.later(100)
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.later(4.9)
    assert mind.of(do.Kill) == []
    mind.later(0.1)
    (kill,) = mind.of(do.Kill)
    assert kill.reason.startswith("EngineHung")


def test_a_slow_client_beside_a_silent_request_gives_the_engine_no_more_time() -> None:
    mind, _, _ = with_standby()
    performs(mind, "one", in_flight=1, output_tokens=3)
    mind.later(3)
    performs(mind, "one", in_flight=2, output_tokens=3)
    mind.later(2)
    assert len(mind.of(do.Kill)) == 1
