"""GPU memory in a slot, with a real agent and a real keeper: who stays holds descriptors, never a context."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.agent_room import AgentRoom
from tests.support.cuda_rank import MODULE
from tests.support.rank_client import RankProcess, TestSet

from ling_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.launcher_client import LauncherClient

SET = TestSet(name="weights")
CAPACITY = 4 << 30  # bytes: of a GPU's, the agent keeps 2 GiB in reserve


async def restart_agent(room: AgentRoom, *launchers: LauncherClient) -> None:
    await room.agent.stop()
    room.agent = room.make_agent()
    await room.agent.start()
    room.tell()
    for launcher in launchers:
        await launcher.break_off()
        await launcher.open()


async def told_to_fill(launcher: LauncherClient, request: int) -> str:
    await launcher.attach(request)
    answer = await launcher.answer(request, final=True)
    assert answer.WhichOneof("answer") == "fill", answer
    return answer.fill.tickets[0].ticket.hex()


async def attached(room: AgentRoom, launcher: LauncherClient, server: str, request: int) -> RankProcess:
    """The launcher's next server is granted the very bytes."""
    await launcher.expect("go")
    rank = await room.rank(launcher, server, module=MODULE)
    await launcher.attach(request)
    answer = await launcher.answer(request, final=True)
    assert answer.WhichOneof("answer") == "granted", answer
    read = await rank.acall("read", answer.granted.tickets[0].ticket.hex())
    assert read == f"{SET.id} {SET.identity.digest}"
    await launcher.event(pb.PHASE_ATTACHED)
    return rank


async def test_weights_outlive_an_agent_while_filling_and_everybody_but_one_afterwards(
    gpu_memory: Callable[[], int],
) -> None:
    before = gpu_memory()
    async with AgentRoom(capacity=CAPACITY) as room:
        one = await room.engine("d001", "one", weights=[SET])
        await one.expect("go")
        rank = await room.rank(one, "s1", module=MODULE)
        await rank.acall("deposit", await told_to_fill(one, 1), SET.id, SET.nbytes)
        await restart_agent(room, one)
        await rank.acall("again", str(one.folder), "s1")
        await rank.acall("deposit", await told_to_fill(one, 2), SET.id, SET.nbytes)
        await rank.acall("fill", SET.name)  # refused if the regions were taken for new ones
        await one.event(pb.PHASE_ATTACHED)
        await room.until(lambda: SET.id in one.held, "back-up at the launcher")
        assert "libcuda" not in Path(f"/proc/{room.keeper.pid}/maps").read_text()

        rank.kill()
        one.server = ""  # its launcher has reaped it
        room.keeper.kill()
        await asyncio.to_thread(room.keeper.wait)
        await restart_agent(room, one)  # the launcher's copy is the last
        room.start_keeper()
        await attached(room, one, "s2", 3)
        two = await room.engine("d002", "two", weights=[SET], purpose=pb.PURPOSE_FILL)
        await attached(room, two, "s3", 1)
        await room.until(lambda: len(room.slot.sets[SET.id].holders) == 4, "agent, keeper and two launchers hold it")
    assert gpu_memory() <= before


async def test_a_killed_fillers_memory_is_free_while_agent_keeper_and_launcher_live(
    gpu_memory: Callable[[], int],
) -> None:
    before = gpu_memory()
    async with AgentRoom(capacity=CAPACITY) as room:
        one = await room.engine("d001", "one", weights=[SET])
        await one.expect("go")
        rank = await room.rank(one, "s1", module=MODULE)
        await rank.acall("deposit", await told_to_fill(one, 1), SET.id, SET.nbytes)
        assert gpu_memory() > before
        rank.kill()
        await room.until(lambda: not room.slot.sets, "the set dropped")
        await room.until(lambda: gpu_memory() <= before, "its memory given back", 20)
        assert room.keeper.poll() is None
