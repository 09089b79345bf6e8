"""The agent's spine with real sockets, descriptors, a real keeper and ranks that are processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.agent_room import AgentRoom
from tests.support.rank_client import MIB, RankProcess, TestSet

from ling_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.support.launcher_client import LauncherClient

pytestmark = pytest.mark.integration
SET = TestSet(name="weights")


async def fill(room: AgentRoom, launcher: LauncherClient, server: str, what: TestSet = SET) -> RankProcess:
    """go, fork, attach, fill, seal: the server has attached what it filled."""
    await launcher.expect("go")
    rank = await room.rank(launcher, server)
    answer = await launcher.attach()
    assert answer is not None
    assert answer.WhichOneof("answer") == "fill", answer
    (ticket,) = answer.fill.tickets
    await rank.acall("deposit", ticket.ticket.hex(), what.id, what.nbytes)
    await rank.acall("write", what.id, what.identity.digest)
    await rank.acall("seal", what.id, what.manifest([what.nbytes // 2] * 2).decode())
    await launcher.event(pb.PHASE_ATTACHED)
    return rank


async def serve(launcher: LauncherClient) -> int:
    """Warm, promoted, accepting; returns the term."""
    await launcher.event(pb.PHASE_WARM)
    role = await launcher.expect("set_role")
    assert role.role == pb.ROLE_ACTIVE
    launcher.role, launcher.term = pb.ROLE_ACTIVE, role.term
    await launcher.event(pb.PHASE_ACCEPTING)
    return int(role.term)


async def test_first_start_fills_seals_and_serves() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET], plan={"kv": MIB})
        rank = await fill(room, one, "s1")
        assert await serve(one) == 1
        assert await rank.acall("listener") == 4096
        await room.until(lambda: SET.id in one.held, "back-up at the launcher")

        def told() -> bool:
            status = room.statuses.newest.get("ns/demo-0", {})
            return bool(status.get("listener")) and status["active"]["pod"] == "one"

        await room.until(told, "status")
        assert [each["state"] for each in room.statuses.newest["ns/demo-0"]["weightSets"]] == ["sealed"]


async def test_next_server_attaches_after_a_kill() -> None:
    async with AgentRoom() as room:
        one = await room.engine("d001", "one", weights=[SET])
        rank = await fill(room, one, "s1")
        await serve(one)
        rank.kill()
        await one.expect("go")
        second = await room.rank(one, "s2")
        answer = await one.attach(2)
        assert answer is not None
        assert answer.WhichOneof("answer") == "granted"
        read = await second.acall("read", answer.granted.tickets[0].ticket.hex())
        assert read == f"{SET.id} {SET.identity.digest}"
        assert await serve(one) == 2
