"""Compiled kernels go from one engine pod to the next of its namespace, by way of a real agent's folder socket."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import standin
from tests.support.agent_room import SLOT, AgentRoom
from tests.support.engine_process import Engine, until

from ling_api import fdpass, names
from ling_engine.channel import Channel
from ling_engine.jit_exchange import JitExchange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY, OTHER = standin.KERNELS, "cd" * 32
LONG_AGO = time.time_ns() - 3600 * 10**9 + 7


class Pod:
    """The launcher's half of an engine pod, as far as the exchange goes."""

    def __init__(self, run: Path, cache: Path) -> None:
        cache.mkdir()
        self.cache = cache
        self.exchange = JitExchange(cache)
        self.exchange.named(KEY)
        self._channel = Channel(fdpass.connect(run / names.FD_SOCKET, 60.0), self._frame, lambda: None)
        self._channel.put({"op": "hello", "version": fdpass.VERSION, "kind": "launcher"})

    def _frame(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "ticket":
            self.exchange.met(message["jit"], self._channel.put)
        elif message["op"] == "jit":
            self.exchange.came(message, fds)
        else:
            fdpass.close_all(fds)

    def compiled(self, name: str) -> Path:
        path = self.cache / name
        path.write_bytes(b"kernel")
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
        return path

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
async def room() -> AsyncIterator[AgentRoom]:
    async with AgentRoom(keeper=False) as room:
        for number in (1, 2):
            await room.engine(f"d00{number}", f"engine-{number}", connect=False)
        yield room


async def kept(room: AgentRoom, count: int) -> None:
    """Waits until the agent's store has so many archives."""
    folder = room.run_dir / "jit"
    async with asyncio.timeout(60):
        while not (folder.exists() and len([one for one in folder.iterdir() if one.name[0] != "."]) == count):
            await asyncio.sleep(0.01)


async def test_the_next_pod_finds_what_the_first_compiled(room: AgentRoom, tmp_path: Path) -> None:
    first = Pod(room.folder("d001"), tmp_path / "first")
    await first.exchange.settled()
    first.compiled("one.cubin")
    first.exchange.offer()
    await kept(room, 1)
    second = Pod(room.folder("d002"), tmp_path / "second")
    await second.exchange.settled()
    came = second.cache / "one.cubin"
    assert (came.read_bytes(), came.stat().st_mtime_ns) == (b"kernel", LONG_AGO)
    second.compiled("two.cubin")
    second.exchange.offer()
    async with asyncio.timeout(60):
        while True:
            third = Pod(room.folder("d001"), tmp_path / f"third-{time.monotonic_ns()}")
            await third.exchange.settled()
            third.close()
            if sorted(one.name for one in third.cache.iterdir()) == ["one.cubin", "two.cubin"]:
                break
    first.close()
    second.close()


async def test_another_key_gets_nothing(room: AgentRoom, tmp_path: Path) -> None:
    first = Pod(room.folder("d001"), tmp_path / "first")
    await first.exchange.settled()
    first.compiled("one.cubin")
    first.exchange.offer()
    await kept(room, 1)
    other = Pod(room.folder("d002"), tmp_path / "other")
    other.exchange.named(OTHER)
    await other.exchange.settled()
    assert list(other.cache.iterdir()) == []
    first.close()
    other.close()


async def test_an_offer_that_is_not_final_is_not_kept_and_harms_nobody(room: AgentRoom, tmp_path: Path) -> None:
    pod = Pod(room.folder("d001"), tmp_path / "pod")
    await pod.exchange.settled()
    fd = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.write(fd, b"x")
    pod._channel.put({"op": "jit-offer", "key": KEY, "bytes": 1}, [fd])
    os.close(fd)
    pod.compiled("one.cubin")
    pod.exchange.offer()
    await kept(room, 1)
    pod.close()


async def test_they_are_there_before_the_zygote_has_imported_and_before_the_agent_knows_the_launcher(
    room: AgentRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Pod(room.folder("d001"), tmp_path / "first")
    await first.exchange.settled()
    first.compiled("one.cubin")
    first.exchange.offer()
    await kept(room, 1)
    cache, gates = tmp_path / "cache", tmp_path / "gates"
    for folder in (cache, gates):
        folder.mkdir()
    (gates / "preload.hold").touch()
    monkeypatch.setenv(names.ENV_CACHE_DIR, str(cache))
    model = standin.write_model(tmp_path / "model")
    flags = ("--runtime", "tests.support.standin:COMPILING")
    engine = await Engine(room.folder("d002"), model, *flags, gates=gates).start()
    try:
        await until((cache / "one.cubin").exists, "the kernels, while the zygote imports")
        launchers = room.agent.slots[SLOT].launchers
        assert {launcher.pod for launcher in launchers.values()} == {"engine-1"}, "it has said nothing else yet"
        (gates / "preload.hold").unlink()
        await until(lambda: len(room.agent.slots[SLOT].launchers) == 2, "its line to the agent")
    finally:
        await engine.kill()
        first.close()
    assert engine.log.count("jit=unpacked") == 1


async def test_a_pod_that_the_agent_does_not_know_yet_is_answered_when_it_does(tmp_path: Path) -> None:
    async with AgentRoom(keeper=False) as room:
        cache = tmp_path / "cache"
        cache.mkdir()
        exchange = JitExchange(cache)
        exchange.ahead(KEY, room.folder("d001"))
        unknown = asyncio.Event()
        room.agent.on_unknown = lambda device: unknown.set()
        async with asyncio.timeout(60):
            await unknown.wait()
        await room.engine("d001", "engine-1", connect=False)
        async with asyncio.timeout(60):  # less than that: nobody makes a line here
            while not exchange._settled.is_set():
                await asyncio.sleep(0.01)
