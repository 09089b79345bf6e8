"""The agent's loop: one slot's trouble is no other's, and what cannot be sent ends that connection."""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.descriptors import open_descriptors
from tests.support.slot_mind import SLOT, spec

from ling_api import fdpass
from ling_api.errors import BadInput
from ling_nodeagent import connection, events, release, serve
from ling_nodeagent import decisions as do
from ling_nodeagent.connection import MOST_BYTES, Connection, Refusals
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
    async with asyncio.timeout(30):
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


def crowd(ended: list[Connection]) -> tuple[list[Connection], list[socket.socket]]:
    """Two connections of one pod, and its ends of them."""
    conns: list[Connection] = []
    pairs = [socket.socketpair() for _ in range(2)]
    for number, (ours, _) in enumerate(pairs):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that the kernel gives
        conns.append(
            Connection(
                number, "d000", ours, on_frame=lambda *_: None, on_end=ended.append, refusals=Refusals(),
                crowd=lambda: sum(conn.waiting for conn in conns),
            )
        )  # fmt: skip
    return conns, [theirs for _, theirs in pairs]


async def test_what_waits_for_a_pod_that_does_not_read_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_DESCRIPTORS", 512)  # of a test's 1024
    ended: list[Connection] = []
    others = open_descriptors()
    conns, peers = crowd(ended)
    before = open_descriptors()
    sent = 0
    while not ended and sent < 1000:
        conns[sent % 2].put({"op": "adopt", "count": 128}, [0] * 128)
        sent += 1
        assert len(open_descriptors() - before) <= 512
    assert conns[0].waiting + conns[1].waiting <= 512
    (gone,) = ended
    assert sent > 512 // 128
    gone.put({"op": "adopt", "count": 1}, [0])
    for conn in conns:
        conn.close()
    for peer in peers:
        peer.close()
    assert open_descriptors() <= others


async def test_bytes_without_descriptors_have_one_too() -> None:
    ended: list[Connection] = []
    conns, peers = crowd(ended)
    for _ in range(MOST_BYTES // 100_000 + 2):
        conns[0].put({"op": "word", "ready": True, "message": "x" * 100_000})
    assert ended == [conns[0]]
    conns[1].close()
    for peer in peers:
        peer.close()


async def test_who_reads_is_sent_more_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_DESCRIPTORS", 128)
    ended: list[Connection] = []
    (conn, _), peers = crowd(ended)
    for _ in range(8):
        conn.put({"op": "adopt", "count": 128}, [0] * 128)
        async with asyncio.timeout(30):
            fdpass.close_all((await asyncio.to_thread(fdpass.receive, peers[0]))[1])
    assert ended == []
    for each in peers:
        each.close()
    conn.close()


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


@pytest.mark.parametrize("pods", [False, True], ids=["nothing of it is left", "its pods are left"])
@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "still there"])
async def test_a_slot_released_by_hand_and_deleted_while_no_agent_was_there_is_forgotten(
    tmp_path: Path, deleted: bool, pods: bool
) -> None:
    (tmp_path / release.FILE).write_text(json.dumps([SLOT]))
    agent = Agent(tmp_path, Nobody())
    pod = Caller(device="d000", namespace="ns", pod="demo-0", uid="u", slot=SLOT, component="slot", revision="")
    callers = {"d000": pod} if pods else {}
    serve._post(agent, Directory(callers=callers, slots={} if deleted else {SLOT: spec()}))
    serve._post(agent, Directory(callers=callers, slots={SLOT: spec()}))
    assert agent.slots[SLOT].released is not deleted, "the next slot of its name is another"
    assert json.loads((tmp_path / release.FILE).read_text()) == ([] if deleted else [SLOT])
    await agent.stop()


async def test_a_run_folder_that_is_full_does_not_end_the_agent(tmp_path: Path) -> None:
    (tmp_path / release.FILE).write_text(json.dumps([SLOT]))
    (tmp_path / f"{release.FILE}.new").mkdir()  # nothing can be written over it
    agent = Agent(tmp_path, Nobody())
    agent.slots_changed({})
    agent.slots_changed({SLOT: spec()})
    assert not agent.slots[SLOT].released
    await agent.stop()


def test_a_kernel_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    serve.check_kernel()

    def unknown(_: object) -> int:
        raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    monkeypatch.setattr(fdpass, "peer_pidfd", unknown)
    with pytest.raises(BadInput, match=r"runs Linux \S+; the agent needs Linux 6.5 or newer"):
        serve.check_kernel()


def test_the_same_refusal_is_said_once_a_minute() -> None:
    refusals = Refusals()
    assert refusals.new("d001", "not known", 0.0)
    assert not refusals.new("d001", "not known", 59.0)
    assert refusals.new("d002", "not known", 59.0)
    assert refusals.new("d001", "another version", 59.0)
    assert refusals.new("d001", "another version", 119.0)
