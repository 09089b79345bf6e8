"""A swap to a server that hangs while it starts, with real processes: what the operator does about it is enough."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from tests.support import deaths

if TYPE_CHECKING:
    from tests.support.nursery import Nursery

TIGHT = {"capacity": "16Mi"}  # the weights (3 MiB) and one server's plan (8 MiB) fit, two do not
STARTS = ("started", "filling", "attached")


def engine(ground: deaths.Ground, pod: str) -> dict[str, Any]:
    return next((each for each in ground.status().get("engines", ()) if each["pod"] == pod), {})


def test_who_waits_is_answered_once_the_engine_that_hangs_is_taken_away(nursery: Nursery) -> None:
    ground = deaths.Ground(nursery, "tests.support.watched:STANDIN")
    ground.asked = dict(TIGHT)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(ground.ask()), daemon=True)
    try:
        one = ground.engine("one")
        ground.start_agent()
        ground.start_keeper()
        one.start()
        ground.until(ground.serving, "the first engine serves", deaths.START)
        two = ground.engine("two")
        two.hold("warm-up")
        two.start()
        ground.until(lambda: engine(ground, "two"), "the second is gated", deaths.START)
        ground.asked["wish"] = {"pod": "two", "term": ground.status()["active"]["term"]}
        ground.direct()
        ground.until(lambda: two.at("warm-up"), "the second server has attached", deaths.START)
        os.kill(two.process("server"), signal.SIGSTOP)
        client.start()
        del ground.asked["wish"]  # the operator has given it up
        ground.direct()
        ground.until(lambda: engine(ground, "two").get("phase") in STARTS, "the agent shows that it starts")
        said = engine(ground, "one")
        assert (said["role"], said["phase"]) == ("gated", "gated"), "what the operator needs to know of the old engine"
        assert engine(ground, "two")["role"] == "gated"
        assert not answers, "nobody else is let go as long as it is expected to come"
        two.program.terminate()  # its pod is deleted
        client.join(deaths.START)
        assert answers, ground.story()
        assert ground.status()["active"]["pod"] == "one"
    finally:
        ground.close()
