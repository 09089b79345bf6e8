"""Ranks that are processes attach by way of their server's desk, as one; real agent, keeper, descriptors, tails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.agent_room import AgentRoom
from tests.support.desk_rank import identity
from tests.support.processes import PYTHONPATH, ROOT
from tests.support.rank_client import MIB, TestSet

from ling_api.errors import AttachCheckFailed, DeviceError, PluginMissing, Refused
from ling_api.v1 import agent_pb2 as pb
from ling_engine.cohort import Answer
from ling_engine.sglang.desk import Desk, RankDied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.launcher_client import LauncherClient

    from ling_api.identity import Identity

pytestmark = pytest.mark.integration
NAME = "weights"
REQUESTS = itertools.count(1)


class RankSet(TestSet):
    """Has the identity of the ranks' own sets."""

    __test__ = False

    @property
    def identity(self) -> Identity:
        return identity(self.name)


SETS = [RankSet(name=NAME, rank=rank, nbytes=6 * MIB) for rank in range(2)]


class Server:
    """A desk in this process and its two ranks beside it."""

    def __init__(self, room: AgentRoom, launcher: LauncherClient, name: str) -> None:
        self.room = room
        self.launcher = launcher
        self.name = name
        self.asked: list[list[str]] = []
        self.steps: list[tuple[str, str]] = []
        self.desk = Desk(2)
        self.ranks: list[asyncio.subprocess.Process] = []

    async def start(self, *words: str) -> None:
        self.launcher.server = self.name
        await self.launcher.event(pb.PHASE_STARTED)
        for rank, fd in enumerate(map(self.desk.end_of, range(2))):
            self.ranks.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.support.desk_rank", str(fd), str(self.launcher.folder)),
                    *(self.name, str(rank), NAME, *words),
                    pass_fds=[fd],
                    cwd=ROOT,
                    env={"PYTHONPATH": f"{ROOT}:{PYTHONPATH}"},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
            )
        self.serving = asyncio.ensure_future(
            self.desk.serve(self.ask, lambda role, step: self.steps.append((role, step)), lambda _: None)
        )

    async def ask(self, sets: list[str]) -> Answer:
        self.asked.append(sets)
        number = next(REQUESTS)
        await self.launcher.say(attach=pb.Attach(request=number, server=self.name, sets=sets))
        answer = await self.launcher.answer(number, final=True)
        tickets = {one.set: one.ticket.hex() for one in answer.fill.tickets}
        granted = {one.set: one.ticket.hex() for one in (*answer.granted.tickets, *answer.fill.granted)}
        return Answer(granted=granted, tickets=tickets)

    async def line(self, rank: int) -> dict[str, Any]:
        out = self.ranks[rank].stdout
        assert out is not None
        value: dict[str, Any] = json.loads(await asyncio.wait_for(out.readline(), 90))
        return value

    async def say(self, rank: int, text: str) -> None:
        pipe = self.ranks[rank].stdin
        assert pipe is not None
        pipe.write(f"{text}\n".encode())
        await pipe.drain()

    async def end(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
            await rank.wait()
        self.serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, RankDied, AttachCheckFailed, DeviceError, Refused):
            await self.serving


class Servers:
    """Those of a test; all of them end with it."""

    def __init__(self) -> None:
        self.all: list[Server] = []

    async def start(self, room: AgentRoom, launcher: LauncherClient, name: str, *words: str) -> Server:
        await launcher.expect("go")
        self.all.append(Server(room, launcher, name))
        await self.all[-1].start(*words)
        return self.all[-1]

    async def first(self, room: AgentRoom, *words: str) -> Server:
        return await self.start(room, await room.engine("d001", "one", weights=SETS), "s1", *words)


@pytest.fixture
async def room() -> AsyncIterator[AgentRoom]:
    async with AgentRoom() as room:
        yield room


@pytest.fixture
async def servers(room: AgentRoom) -> AsyncIterator[Servers]:
    servers = Servers()
    yield servers
    for server in servers.all:
        await server.end()


async def test_ranks_fill_as_one_and_the_next_server_attaches_as_one(room: AgentRoom, servers: Servers) -> None:
    first = await servers.first(room)
    assert [(await first.line(rank))["loading"] for rank in range(2)] == [True, True]
    assert [await first.line(rank) for rank in range(2)] == [{"filled": True, "nbytes": 6 * MIB}] * 2
    await first.desk.complete(("target",))
    assert first.asked == [[each.id for each in SETS]], "one question for all ranks"
    assert first.steps.count(("target", "filling")) == first.steps.count(("target", "sealed")) == 1
    await room.until(lambda: len(room.slot.sets) == 2 and all(s.attached for s in room.slot.sets.values()), "attached")
    await first.end()
    second = await servers.start(room, first.launcher, "s2")
    assert [await second.line(rank) for rank in range(2)] == [{"filled": False, "nbytes": 6 * MIB}] * 2


async def test_a_rank_that_dies_ends_its_server_at_once(room: AgentRoom, servers: Servers) -> None:
    server = await servers.first(room)
    for rank in range(2):
        await server.line(rank)
        await server.line(rank)
    server.ranks[1].kill()
    with pytest.raises(RankDied, match="rank 1"):
        await asyncio.wait_for(server.serving, 90)  # measured: some milliseconds
    found = room.slot.launchers["uid-one"]
    await room.until(lambda: room.slot.launchers["uid-one"].server is None or found.server.dead, "the agent's view")


@pytest.mark.parametrize(("code", "error"), [(5, AttachCheckFailed), (6, DeviceError), (1, RankDied)])
async def test_a_rank_that_fails_says_why(room: AgentRoom, servers: Servers, code: int, error: type) -> None:
    server = await servers.first(room)
    for rank in range(2):
        await server.line(rank)
        await server.line(rank)
    await server.say(0, f"{code} something went wrong")
    with pytest.raises(error, match="rank 0: something went wrong"):
        await asyncio.wait_for(server.serving, 90)


async def test_an_agent_replaced_in_the_middle_of_a_fill_is_told_of_it(room: AgentRoom, servers: Servers) -> None:
    server = await servers.first(room, "hold")
    for rank in range(2):
        await server.line(rank)
    await server.launcher.event(pb.PHASE_FILLING)
    await server.launcher.break_off()
    await room.agent.stop()
    room.agent = room.make_agent()
    await room.agent.start()
    room.tell()
    await server.launcher.open()
    for rank in range(2):
        await server.say(rank, "go on")
    assert [await server.line(rank) for rank in range(2)] == [{"filled": True, "nbytes": 6 * MIB}] * 2
    await room.until(lambda: {held.state.value for held in room.slot.sets.values()} == {"sealed"}, "sealed")


async def test_a_refusal_reaches_every_rank_and_ends_the_server(
    room: AgentRoom, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_server: Server, _sets: list[str]) -> Answer:
        raise Refused("no room in slot ns/demo-0")

    monkeypatch.setattr(Server, "ask", refuse)
    server = await servers.first(room)
    with pytest.raises(Refused, match="no room in slot"):
        await asyncio.wait_for(server.serving, 90)
    assert [await asyncio.wait_for(rank.wait(), 90) for rank in server.ranks] == [1, 1]


async def test_whoever_comes_up_without_its_weights_does_not_serve(room: AgentRoom, servers: Servers) -> None:
    server = await servers.first(room)
    for rank in range(2):
        await server.line(rank)
    await server.desk.complete(("target",))
    server.desk.require(("target",))
    with pytest.raises(PluginMissing, match="rank 0 came up without the nextn weights"):
        server.desk.require(("target", "nextn"))


async def test_a_set_with_a_tail_is_given_back_whole(room: AgentRoom, servers: Servers) -> None:
    server = await servers.first(room)
    for rank in range(2):
        await server.line(rank)
        await server.line(rank)
    await server.launcher.break_off()  # the keeper alone is to give back
    await room.agent.stop()
    room.agent = room.make_agent()
    await room.agent.start()
    room.tell()
    await room.until(lambda: [s.state.value for s in room.slot.sets.values()] == ["sealed"] * 2, "given back sealed")
    assert {held.nbytes for held in room.slot.sets.values()} == {6 * MIB}
    await server.launcher.open()
