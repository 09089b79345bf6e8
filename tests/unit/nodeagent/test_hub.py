"""The agent's loop: one slot's trouble is no other's, and what cannot be sent ends that connection."""

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.slot_mind import SLOT, spec

from ling_nodeagent import decisions as do
from ling_nodeagent import events, serve
from ling_nodeagent.connection import Connection, Refusals
from ling_nodeagent.directory import Caller
from ling_nodeagent.hub import Agent
from ling_nodeagent.static import Directory


class Nobody:
    def publish(self, slot: str, status: Mapping[str, object]) -> None:
        """Not asked here."""


async def test_a_slot_in_trouble_keeps_no_other_from_being_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(tmp_path, Nobody(), recover_min=0.0, recover_max=0.0)
    told, trouble = [], []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))

    def say(slot: str, decision: do.Decision) -> None:
        if slot != "ns/well":
            raise RuntimeError("trouble")
        told.append(type(decision))

    monkeypatch.setattr(agent._deeds, "do", say)
    for name in (*(f"ns/ill-{number}" for number in range(8)), "ns/well"):
        agent.post(name, events.SpecChanged(spec=spec(name=name)))
        agent.post(name, events.KeeperHello(conn=1, uid="u", netns=7))
        agent.post(name, events.Ready(conn=1))
    async with asyncio.timeout(5):
        while not told or len(trouble) < 8:
            await asyncio.sleep(0.001)
    assert do.Word in told
    await agent.stop()


@pytest.mark.parametrize("what", ["a closed descriptor", "too long"])
async def test_what_cannot_be_sent_ends_the_connection(what: str) -> None:
    ours, theirs = socket.socketpair()
    ended: list[Connection] = []
    conn = Connection(1, "d000", ours, on_frame=lambda *_: None, on_end=ended.append, refusals=Refusals())
    message: dict[str, Any] = {"op": "word", "ready": True, "message": ""}
    if what == "too long":
        conn.put({**message, "message": "x" * (2 << 20)})
    else:
        gone = os.dup(0)
        os.close(gone)
        conn.put(message, [gone])
    assert ended == [conn]
    assert theirs.recv(10) == b""
    conn.put(message)
    theirs.close()


@pytest.mark.parametrize("exists", [True, False], ids=["the slot is there", "only its pods are left"])
async def test_a_slot_of_which_a_new_agent_finds_only_the_pods_is_gone(tmp_path: Path, exists: bool) -> None:
    """A LingDeployment was deleted while no agent was there: its pods must be let go."""
    agent = Agent(tmp_path, Nobody())
    pod = Caller(
        device="d000", namespace="ns", pod="demo-0", uid="u", slot=SLOT, component="slot", revision=""
    )  # fmt: skip
    serve._post(agent, Directory(callers={"d000": pod}, slots={SLOT: spec()} if exists else {}))
    assert agent.slots[SLOT].callers == (pod,)
    assert agent.slots[SLOT].ending is not exists
    await agent.stop()


def test_the_same_refusal_is_said_once_a_minute() -> None:
    refusals = Refusals()
    assert refusals.new("d001", "not known", 0.0)
    assert not refusals.new("d001", "not known", 59.0)
    assert refusals.new("d002", "not known", 59.0)
    assert refusals.new("d001", "another version", 59.0)
    assert refusals.new("d001", "another version", 119.0)
