"""The launcher's line to the agent outlives whatever goes wrong in one of its lives."""

import asyncio
from pathlib import Path

import pytest

from ling_api.v1 import agent_pb2 as pb
from ling_engine import stream
from ling_engine.backups import Backups
from ling_engine.jit_exchange import JitExchange


async def test_the_line_is_made_again_after_a_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RECONNECT_S", 0.001)
    lives = 0

    async def life(self: stream.AgentLine) -> None:
        nonlocal lives
        lives += 1
        raise KeyError("a message that broke us")

    monkeypatch.setattr(stream.AgentLine, "_connected_once", life)
    line = stream.AgentLine(
        tmp_path,
        Backups(),
        hello=lambda ticket: pb.Hello(),
        on_message=lambda m: None,
        on_parked=lambda fds: None,
        jit=JitExchange(tmp_path / "no-cache"),
    )
    running = asyncio.create_task(line.run())
    async with asyncio.timeout(30):
        while lives < 3:
            await asyncio.sleep(0.001)
    assert not running.done()
    assert not line.pass_on([])
    running.cancel()
