"""Deaths and restarts beside the agent, with real descriptors: who holds gives back, and nothing is loaded twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.agent_room import AgentRoom
from tests.support.rank_client import MIB, RankError, TestSet

from ling_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.support.launcher_client import LauncherClient
    from tests.support.rank_client import RankProcess

    from ling_api.v1.agent_pb2 import AttachAnswer

pytestmark = pytest.mark.integration
SET = TestSet(name="weights")
MANIFEST = SET.manifest([SET.nbytes // 2] * 2).decode()


async def told_to_fill(room: AgentRoom, launcher: LauncherClient, server: str) -> tuple[RankProcess, str]:
    await launcher.expect("go")
    rank = await room.rank(launcher, server)
    answer = await launcher.attach()
    assert answer is not None
    return rank, answer.fill.tickets[0].ticket.hex()


async def sealed(room: AgentRoom, launcher: LauncherClient, server: str) -> RankProcess:
    rank, ticket = await told_to_fill(room, launcher, server)
    await rank.acall("deposit", ticket, SET.id, SET.nbytes)
    await rank.acall("write", SET.id, SET.identity.digest)
    await rank.acall("seal", SET.id, MANIFEST)
    await launcher.event(pb.PHASE_ATTACHED)
    await room.until(lambda: SET.id in launcher.held, "back-up at the launcher")
    return rank


async def attached(room: AgentRoom, pod: str, device: str) -> None:
    """A new engine pod is granted the very bytes, without a fill."""
    two = await room.engine(device, pod, weights=[SET], purpose=pb.PURPOSE_FILL)
    await two.expect("go")
    rank = await room.rank(two, f"server-{pod}")
    await two.attach()
    answer: AttachAnswer = await two.answer(final=True)
    assert answer.WhichOneof("answer") == "granted", answer
    assert await rank.acall("read", answer.granted.tickets[0].ticket.hex()) == f"{SET.id} {SET.identity.digest}"


async def restart_agent(room: AgentRoom) -> None:
    await room.agent.stop()
    room.agent = room.make_agent()
    await room.agent.start()
    room.tell()


async def reconnect(launcher: LauncherClient) -> None:
    await launcher.break_off()
    await launcher.open()


@pytest.mark.parametrize("dead", ["keeper", "agent", "keeper and agent"])
async def test_sealed_weights_outlive(dead: str) -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        await sealed(room, one, "s1")
        if "keeper" in dead:
            room.keeper.kill()
            await asyncio.to_thread(room.keeper.wait)
        if "agent" in dead:
            await restart_agent(room)
            await reconnect(one)
        if "keeper" in dead:
            room.start_keeper()
        await attached(room, "two", "d002")
        assert room.agent.counters.fills == (0 if "agent" in dead else 1)
        await room.until(lambda: len(room.slot.sets[SET.id].holders) == 4, "agent, keeper and two launchers hold it")


async def test_a_condemned_set_stays_so_under_the_next_agent() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        reader = await sealed(room, one, "s1")
        two = await room.engine("d002", "two", weights=[SET], purpose=pb.PURPOSE_FILL)
        await two.expect("go")
        bad = await room.rank(two, "s2")
        await two.attach()
        assert (await two.answer(final=True)).WhichOneof("answer") == "granted"
        await two.event(pb.PHASE_EXITED, exit_code=5)
        bad.kill()
        await room.until(lambda: room.slot.sets[SET.id].condemned, "the set is condemned")
        await restart_agent(room)
        one.phase = pb.PHASE_ATTACHED
        await reconnect(one)
        three = await room.engine("d003", "three", weights=[SET], purpose=pb.PURPOSE_FILL)
        await three.expect("go")
        await room.rank(three, "s3")
        told = await three.attach()
        assert told is not None
        assert "is condemned and still in use" in told.wait.reason
        reader.kill()
        await one.event(pb.PHASE_EXITED, exit_code=-9)
        assert (await three.answer(final=True)).WhichOneof("answer") == "fill"
        await room.until(lambda: not room.slot.doomed, "what comes now are other bytes")


async def test_filler_that_is_killed_leaves_nothing_and_the_next_fills() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        rank, ticket = await told_to_fill(room, one, "s1")
        await rank.acall("deposit", ticket, SET.id, SET.nbytes)
        two = await room.engine("d002", "two", weights=[SET], purpose=pb.PURPOSE_FILL)
        await two.expect("go")
        await room.rank(two, "s2")
        waiting = await two.attach()
        assert waiting is not None
        assert waiting.WhichOneof("answer") == "wait"
        rank.kill()
        answer = await two.answer(final=True)
        assert answer.WhichOneof("answer") == "fill"
        assert room.agent.store.open_fds == 1  # the listener


async def test_writer_that_is_left_refuses_the_fill() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        rank, ticket = await told_to_fill(room, one, "s1")
        await rank.acall("deposit", ticket, SET.id, SET.nbytes)
        await rank.acall("hold_writable", SET.id)
        with pytest.raises(RankError, match="still mapped writable"):
            await rank.acall("seal", SET.id, MANIFEST)
        rank.kill()
        await room.until(lambda: not room.slot.sets, "all copies closed")


async def test_swap_to_other_weights_passes_connections_to_the_gated_launcher() -> None:
    other = TestSet(name="other", nbytes=4 * MIB)
    async with AgentRoom(capacity=6 * MIB) as room:
        one = await room.engine("d001", "one", weights=[SET], plan={"kv": MIB})
        rank = await sealed(room, one, "s1")
        await one.event(pb.PHASE_WARM)
        await one.expect("set_role")
        await one.event(pb.PHASE_ACCEPTING)
        two = await room.engine("d002", "two", weights=[other], plan={"kv": MIB}, revision="bbbbbbbb")
        room.wish("two")
        role = await one.expect("set_role")
        assert role.role == pb.ROLE_DRAINING
        await rank.acall("pass_pair")
        await room.until(lambda: two.parked, "parked connection")
        rank.kill()
        await two.expect("go")
        assert SET.id not in one.held
        assert SET.id not in room.slot.sets


async def test_ticket_of_another_pods_folder_and_a_replayed_one_are_refused() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        await sealed(room, one, "s1")
        two = await room.engine("d002", "two", weights=[SET], purpose=pb.PURPOSE_FILL)
        await two.expect("go")
        thief, owner = await room.rank(one, "s1"), await room.rank(two, "s2")
        answer = await two.attach()
        assert answer is not None
        ticket = answer.granted.tickets[0].ticket.hex()
        with pytest.raises(RankError, match="another pod's"):
            await thief.acall("read", ticket)
        await owner.acall("read", ticket)
        with pytest.raises(RankError, match="used already"):
            await owner.acall("read", ticket)


async def test_of_a_deleted_slot_whose_pods_are_gone_nothing_is_kept() -> None:
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    async with AgentRoom(keeper=False) as room:
        await room.until(lambda: room.agent.slots, "the slot is known")
        room.agent.callers_changed({})
        room.agent.slots_changed({})
        await room.until(lambda: not room.agent.slots, "the slot is forgotten")
    assert not troubles
