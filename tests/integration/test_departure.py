"""A slot that is taken away and a node that is left, with real processes: nobody is refused, nobody holds them back."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.support import deaths
from tests.support.processes import PYTHONPATH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.nursery import Nursery

STANDIN = "tests.support.watched:STANDIN"
LAME_DUCK = 5  # seconds


@pytest.fixture
def ground(nursery: Nursery) -> Iterator[deaths.Ground]:
    """One engine serves."""
    made = deaths.Ground(nursery, STANDIN)
    made.asked = {"lameDuckSeconds": LAME_DUCK, "graceSeconds": 60}
    try:
        made.engine("one").start()
        made.start_agent()
        made.start_keeper()
        made.until(made.serving, "it serves", deaths.START)
        yield made
    finally:
        made.close()


def ready(port: int) -> int:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    try:
        asking.request("GET", "/readyz")
        return asking.getresponse().status
    finally:
        asking.close()


def in_flight(ground: deaths.Ground) -> int:
    return sum(each["inFlight"] for each in ground.status().get("engines", ()))


def leave(ground: deaths.Ground) -> subprocess.Popen[bytes]:
    """The slot pod's preStop."""
    env = {"PYTHONPATH": PYTHONPATH, "LING_PROBE_PORT": str(ground.probe_port), "LING_RUN": str(ground.run)}
    return subprocess.Popen([sys.executable, "-m", "ling_nodeagent.keeper", "leave"], env=env)


def test_the_lame_duck_accepts_and_pre_stop_waits_for_what_is_in_flight(ground: deaths.Ground) -> None:
    answers: list[str] = []
    long = threading.Thread(target=lambda: answers.append(ground.ask(max_tokens=80, token_seconds=0.1)))
    long.start()
    ground.until(lambda: in_flight(ground), "the long request is known")
    with leave(ground) as leaving:
        began = time.monotonic()
        while time.monotonic() < began + 1.0:
            assert ground.ask(), "new connections are answered"
        assert leaving.poll() is None
        long.join(90)
        assert answers, "what was in flight ends well"
        assert leaving.wait(90) == 0
    assert time.monotonic() - began > LAME_DUCK
    ground.until(lambda: ground.status().get("weightSets") == [], "nothing is held")


def test_at_the_deadline_probes_say_no_and_requests_are_answered(ground: deaths.Ground) -> None:
    launcher = int(ground.engines[0].log.read_text().split("probes=")[1].split()[0])
    ground.until(lambda: ready(launcher) == ready(ground.probe_port) == 200, "both are ready")
    ground.asked |= {"leavesBy": time.time() + 1}
    ground.direct()
    ground.until(lambda: ready(launcher) == ready(ground.probe_port) == 503, "neither is")
    assert ground.ask()
    del ground.asked["leavesBy"]
    ground.direct()
    ground.until(lambda: ready(launcher) == ready(ground.probe_port) == 200, "the node stays after all")
