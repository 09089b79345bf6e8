"""An agent that was stopped for a while, as a paused machine or a starved node does it, blames no engine for it."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from tests.support.attacks import REVISION, Scene
from tests.support.launcher_client import LauncherClient

from ling_api.v1 import agent_pb2 as pb

pytestmark = pytest.mark.integration
PATIENCE_MS = 3000.0  # of the engine; this test must be late with a word of it by no more than that


async def busy(engine: LauncherClient, until: asyncio.Event) -> None:
    """It answers a request all along and says so, whether somebody listens or not."""
    tokens = 0
    while not until.is_set():
        tokens += 10
        told = pb.Performance(in_flight=1, output_tokens=tokens, mean_tpot_ms=20, patience_ms=PATIENCE_MS)
        await engine.say(performance=told)
        await asyncio.sleep(0.1)


async def test_engines_that_worked_while_the_agent_was_stopped_are_not_killed() -> None:
    with Scene() as scene:
        engine = LauncherClient(
            folder=scene.folder("d003"), pod="stranger", revision=REVISION, role=pb.ROLE_ACTIVE, server="s1",
            phase=pb.PHASE_ACCEPTING, term=3,
        )  # fmt: skip
        await engine.open()
        over = asyncio.Event()
        speaking = asyncio.create_task(busy(engine, over))
        heard = lambda: [each["inFlight"] for each in scene.status("ns/other-0").get("engines", ())] == [1]  # noqa: E731
        await scene.until(heard, "the engine is heard")
        scene.agent.send_signal(signal.SIGSTOP)
        await asyncio.sleep(3 * PATIENCE_MS / 1000)
        scene.agent.send_signal(signal.SIGCONT)
        ends = time.monotonic() + 2 * PATIENCE_MS / 1000
        while time.monotonic() < ends:
            await asyncio.sleep(0.05)
            assert engine.last("kill") is None
        assert "event=held-up" in (scene.root / "log").read_text()
        over.set()
        await speaking
        # it listens as before: silence is a hang again
        await scene.until(lambda: engine.last("kill") is not None, "the silent engine is killed")
        await engine.close()
