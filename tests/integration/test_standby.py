"""A warm standby of real processes: it takes over at a death, at a hang, and only while it can prove itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import deaths, witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.nursery import Nursery

STANDIN = "tests.support.watched:STANDIN"


@pytest.fixture
def ground(nursery: Nursery) -> Iterator[deaths.Ground]:
    """`one` serves, `two` is its warm standby."""
    made = deaths.Ground(nursery, STANDIN)
    made.asked = {"standbys": 1}
    try:
        one = made.engine("one")
        one.flags = ["--proof-seconds", "1"]
        made.start_agent()
        made.start_keeper()
        one.start()
        made.until(lambda: role(made, "one") == "active", "the first engine serves", deaths.START)
        two = made.engine("two")
        two.flags = one.flags
        two.start()
        made.until(lambda: role(made, "two") == "warm", "the second is warm", deaths.START)
        yield made
    finally:
        made.close()


def engine(ground: deaths.Ground, pod: str) -> dict[str, Any]:
    return next((each for each in ground.status().get("engines", ()) if each["pod"] == pod), {})


def role(ground: deaths.Ground, pod: str) -> str:
    return str(engine(ground, pod).get("role", ""))


def served_by(ground: deaths.Ground) -> int:
    return int(ground.ask().split("pid ")[1].split()[0])


def degraded(ground: deaths.Ground) -> str:
    return next((c["reason"] for c in ground.status().get("conditions", ()) if c["type"] == "Degraded"), "")


class Asking:
    """A request on a thread of its own."""

    def __init__(self, ground: deaths.Ground, **body: Any) -> None:
        self.text: str | None = None
        self.error: Exception | None = None
        self._ground, self._body = ground, body
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.text = self._ground.ask(**self._body)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error


def test_the_standby_takes_over_at_once_and_the_dead_engine_comes_back_as_standby(ground: deaths.Ground) -> None:
    ground.ask()
    one, two = ground.engines
    standby = two.process("server")
    witness.kill([one.process("server")])
    text = ground.ask()
    assert two.process("server") == standby, "nobody was let go for this"
    assert f"pid {standby}" in text or role(ground, "two") == "active"
    ground.until(lambda: role(ground, "one") == "warm", "it is the standby now", deaths.START)
    assert ground.status()["active"] == {"pod": "two", "uid": "uid-two", "term": 2}
    assert ground.events()["fill"] <= 1


def test_a_new_agent_finds_both_as_they_were(ground: deaths.Ground) -> None:
    witness.kill([ground.agent.pid])
    ground.agent.exit()
    ground.start_agent()
    ground.until(lambda: role(ground, "two") == "warm" and role(ground, "one") == "active", "as before", deaths.START)
    witness.kill([ground.engines[0].process("server")])
    ground.ask()
    assert ground.status()["active"]["pod"] == "two", ground.story(6000)


@pytest.mark.parametrize("busy", [True, False], ids=["in a request", "idle"])
def test_a_stopped_server_is_killed_and_the_standby_serves(ground: deaths.Ground, busy: bool) -> None:
    ground.ask()
    ground.until(lambda: engine(ground, "one").get("requests"), "the agent knows that it works")
    hung = ground.engines[0].process("server")
    victim = Asking(ground, max_tokens=2000, token_seconds=0.01) if busy else None
    if busy:
        ground.until(lambda: engine(ground, "one").get("inFlight"), "the agent knows of the request")
    os.kill(hung, signal.SIGSTOP)
    began = time.monotonic()
    waiting = Asking(ground)
    waiting.thread.join(90)
    assert waiting.text is not None, waiting.error
    assert time.monotonic() - began > 3.0, "a server may be silent for 5 s, of which the agent heard a little before"
    assert ground.status()["active"]["pod"] == "two", ground.story(6000)
    assert degraded(ground) == "EngineHung"
    if victim is not None:
        victim.thread.join(90)
        assert victim.error is not None, "what the hung server had accepted is lost, explicitly"
    ground.until(lambda: role(ground, "one") == "warm", "a new server in the place of the hung one", deaths.START)
    assert ground.engines[0].process("server") not in (0, hung)


def test_a_client_that_does_not_go_on_makes_no_server_a_hung_one(ground: deaths.Ground) -> None:
    ground.ask()
    body = json.dumps({"model": ground.model.name, "prompt": "a", "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", ground.port), timeout=90) as client:
        client.sendall(head.encode() + body[:1])
        ground.until(lambda: engine(ground, "one").get("inFlight") == 1, "the agent knows of the request")
        time.sleep(7)  # longer than an engine may be silent
        client.sendall(body[1:])
        answer = client.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 200"), ground.story(6000)
    assert ground.status()["active"] == {"pod": "one", "uid": "uid-one", "term": 1}
    assert degraded(ground) != "EngineHung"


def test_a_standby_that_cannot_prove_itself_is_replaced_and_never_promoted(ground: deaths.Ground) -> None:
    one, two = ground.engines
    wrong = two.process("server")
    (two.gates / "corrupt").touch()
    ground.until(lambda: two.process("server") != wrong, "it is killed", deaths.START)
    (two.gates / "corrupt").unlink()  # at once: its successor is to prove itself
    ground.until(lambda: two.process("server") not in (0, wrong), "another server in its place", deaths.START)
    ground.until(lambda: engine(ground, "two").get("lastExit") == "6", "status says how it ended")
    assert ground.status()["active"] == {"pod": "one", "uid": "uid-one", "term": 1}
    ground.until(lambda: role(ground, "two") == "warm", "the new one is warm", deaths.START)
    witness.kill([one.process("server")])
    ground.ask()
    assert ground.status()["active"]["pod"] == "two", ground.story(6000)


def test_a_stopped_standby_is_replaced(ground: deaths.Ground) -> None:
    two = ground.engines[1]
    stopped = two.process("server")
    time.sleep(1.5)  # one proof, so that the agent expects the next
    os.kill(stopped, signal.SIGSTOP)
    ground.until(lambda: two.process("server") not in (0, stopped), "another server in its place", deaths.START)
    assert ground.status()["active"]["pod"] == "one"
