"""One server's sets as one: what is granted is fetched, what is missing is filled, each with a ticket that is fresh."""

from typing import Any, cast

import pytest

from ling_api.identity import Identity
from ling_api.v1 import agent_pb2 as pb
from ling_engine import attach, filling
from ling_engine.cohort import Answer, Cohort
from ling_engine.launched import LaunchedServer

A, B, C = (f"{letter * 64}:0" for letter in "abc")


class Link:
    async def welcomed(self) -> int:
        return 1

    def put(self, message: dict[str, Any]) -> bool:
        return True


class Agent:
    """Its tickets are good until the next fill has taken its time."""

    def __init__(self, held: set[str]) -> None:
        self.held = held
        self.fresh: set[str] = set()
        self.asked = 0

    async def ask(self, sets: list[str]) -> Answer:
        self.asked += 1
        tickets = {name: f"{name} {self.asked}" for name in sets}
        self.fresh = set(tickets.values())
        return Answer(
            granted={name: ticket for name, ticket in tickets.items() if name in self.held},
            tickets={name: ticket for name, ticket in tickets.items() if name not in self.held},
        )


async def test_every_set_is_filled_with_a_ticket_that_is_not_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, done = Agent({A}), []

    class Fill:
        def __init__(self, cohort: Cohort, name: str, *twin: Any) -> None:
            self.name = name

        async def run(self, ticket: str) -> str:
            assert ticket in agent.fresh
            agent.fresh.clear()  # a fill takes minutes, a ticket lives for seconds
            agent.held.add(self.name)
            done.append(("fill", self.name))
            return self.name

    async def fetch(cohort: Cohort, name: str, ticket: str, *twin: Any) -> str:
        assert ticket in agent.fresh
        done.append(("fetch", name))
        return name

    monkeypatch.setattr(filling, "Fill", Fill)
    monkeypatch.setattr(attach, "_fetch", fetch)
    cohort = Cohort(
        link=cast("Any", Link()), memory=cast("Any", None), thread=cast("Any", None), ask=agent.ask,
        tell=lambda step: None, progress=lambda share: None, revision="",
    )  # fmt: skip
    twin = (cast("Any", None), Identity.of("target", {}))
    assert set(await attach.attach(cohort, dict.fromkeys((A, B, C), twin))) == {A, B, C}
    assert done == [("fetch", A), ("fill", B), ("fill", C)]


async def test_ranks_that_ask_again_at_once_have_each_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    server = LaunchedServer(
        on_phase=lambda phase: None, on_attach=asked.append, on_performance=lambda: None, on_ended=lambda code: None
    )
    relayed: list[tuple[int, str]] = []
    monkeypatch.setattr(
        type(server.child), "put", lambda self, message: relayed.append((message["re"], message["kind"]))
    )
    server.child.told({"op": "attach", "re": 1, "sets": [A]}, [])
    server.child.told({"op": "attach", "re": 2, "sets": [B]}, [])
    assert asked == [1, 2]
    assert [(one.request, list(one.sets)) for one in map(server.attach, server.pending)] == [(1, [A]), (2, [B])]
    assert list(server.to_proto().sets) == [A, B], "hello names every set that it ever asked for"
    server.answer(pb.AttachAnswer(request=1, wait=pb.Wait(reason="a fill")))
    server.answer(pb.AttachAnswer(request=1, granted=pb.Granted()))
    assert list(server.pending) == [2], "only this one is said again to a new agent"
    server.answer(pb.AttachAnswer(request=2, granted=pb.Granted()))
    server.answer(pb.AttachAnswer(request=2, granted=pb.Granted()))
    assert relayed == [(1, "wait"), (1, "granted"), (2, "granted")]
