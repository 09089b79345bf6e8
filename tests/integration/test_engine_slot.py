"""Engines in a slot with the real agent and the real keeper: what a client sees when things change or die."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support import standin
from tests.support.agent_room import MIB, NEXT, REVISION, SLOT, AgentRoom
from tests.support.engine_process import Engine, until

from ling_nodeagent.directory import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration
SHAPE = {"nbytes": 3 << 20, "plan_bytes": 8 * MIB, "token_seconds": 0.002}


class Slot:
    """An AgentRoom with engine processes in it."""

    def __init__(self, room: AgentRoom) -> None:
        self.room = room
        self.engines: list[Engine] = []

    async def engine(
        self, device: str, pod: str, *, revision: str = REVISION, command: str = "run", gates: Path | None = None
    ) -> Engine:
        self.room.engines[device] = Caller(
            device=device, namespace="ns", pod=pod, uid=f"uid-{pod}", slot=SLOT, component="engine", revision=revision
        )
        self.room.tell()
        model = standin.write_model(self.room.run_dir / "model", **SHAPE)
        engine = Engine(self.room.folder(device), model, command=command, revision=revision, gates=gates)
        self.engines.append(engine)
        return await engine.start()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.room.statuses.newest.get(SLOT, {}))

    def holders(self) -> set[int]:
        """How many processes hold each of the weight sets."""
        return {len(each.holders) for each in self.room.slot.sets.values()}

    @property
    def active(self) -> str:
        return str(self.status.get("active", {}).get("pod", ""))

    async def serving(self, pod: str) -> None:
        await until(lambda: self.active == pod, f"{pod} is active; status {self.status}")

    async def attached(self, pod: str) -> None:
        """The server that accepts there now found the weights: a status comes a little later than what it tells."""

        def told() -> bool:
            engines = [one for one in self.status.get("engines", ()) if one["pod"] == pod]
            return bool(engines) and "accepting" in engines[0]["phases"] and "filling" not in engines[0]["phases"]

        await until(told, f"{pod} has attached, not filled; status {self.status}")

    async def ask(self, **body: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=90) as client:
            return await client.post(
                f"http://127.0.0.1:{self.room.port}/v1/completions", json={"max_tokens": 2, **body}
            )


@asynccontextmanager
async def slot(*, capacity: int = 64 * MIB) -> AsyncIterator[Slot]:
    async with AgentRoom(capacity=capacity) as room:
        made = Slot(room)
        try:
            yield made
        finally:
            for engine in made.engines:
                await engine.kill()


class Load:
    """Keep-alive clients that ask all the time, each on its own connection."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._tasks = [asyncio.create_task(self._run()) for _ in range(clients)]
        self._stop = False
        self.answered = 0
        self.failed: list[str] = []
        self.pids: set[str] = set()

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=90) as client:
            while not self._stop:
                try:
                    response = await client.post(self._url, json={"max_tokens": 2})
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                    continue
                if response.status_code != 200:
                    self.failed.append(response.text)
                    continue
                self.answered += 1
                self.pids.add(response.json()["choices"][0]["text"].split()[3])
                await asyncio.sleep(0.02)

    async def more(self, count: int = 30) -> None:
        """So many more answers."""
        wanted = self.answered + count
        await until(lambda: self.answered >= wanted, f"{count} more answers; failed {self.failed}")

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def test_kill_under_waiting_clients_refuses_nobody() -> None:
    async with slot() as here:
        engine = await here.engine("d001", "one")
        await here.serving("one")
        first = await here.ask()
        engine.send("ling-server")
        answers = await asyncio.gather(*(here.ask() for _ in range(8)))
        assert [one.status_code for one in answers] == [200] * 8
        assert answers[0].text != first.text
        await here.attached("one")


@pytest.mark.parametrize("capacity", [64 * MIB, 16 * MIB], ids=["handover", "swap"])
async def test_a_wish_changes_engines_under_keep_alive_load_without_a_failure(capacity: int) -> None:
    async with slot(capacity=capacity) as here:
        one = await here.engine("d001", "one")
        await here.serving("one")
        load = Load(here.room.port)
        await load.more()
        here.room.tell(revision=NEXT)
        await here.engine("d002", "two", revision=NEXT)
        await until(lambda: len(here.room.slot.launchers) == 2, "the second launcher")
        here.room.wish("two")
        await here.serving("two")
        await until(lambda: "server=drained" in one.log, "the first is drained")
        await load.more()
        await load.end()
        assert load.failed == []
        assert len(load.pids) == 2


class KeptAlive:
    """One client connection that stays open between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> KeptAlive:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self) -> int:
        body = b'{"max_tokens": 1}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self._reader.readexactly(int(answer.split("content-length:")[1].split()[0]))
        return int(answer.split()[1])


@pytest.mark.parametrize("serves", [True, False], ids=["it serves", "it dies and the first goes on"])
async def test_many_parked_connections_are_answered_whatever_becomes_of_the_second_engine(
    tmp_path: Path, serves: bool
) -> None:
    async with slot(capacity=16 * MIB) as here:
        one = await here.engine("d001", "one")
        await here.serving("one")
        clients = [await KeptAlive.to(here.room.port) for _ in range(130)]  # more than fit in one frame
        assert set(await asyncio.gather(*(each.ask() for each in clients))) == {200}
        here.room.tell(revision=NEXT)
        (tmp_path / "open.hold").touch()
        two = await here.engine("d002", "two", revision=NEXT, gates=tmp_path)
        await until(lambda: len(here.room.slot.launchers) == 2, "the second launcher")
        here.room.wish("two")
        await until((tmp_path / "open.reached").exists, "the second's server")
        await until(lambda: "server=drained" in one.log, "the first is drained")
        if not serves:
            two.send("ling-server")
        else:
            (tmp_path / "open.hold").unlink()
        await here.serving("two" if serves else "one")
        async with asyncio.timeout(90):
            assert set(await asyncio.gather(*(each.ask() for each in clients))) == {200}
        for each in clients:
            each.writer.close()


async def test_sigterm_with_a_standby_loses_nothing() -> None:
    async with slot() as here:
        one = await here.engine("d001", "one")
        await here.serving("one")
        await here.engine("d002", "two")
        await until(lambda: len(here.room.slot.launchers) == 2, "the second launcher")
        load = Load(here.room.port)
        await load.more()
        one.terminate()
        assert await one.exit() == 0
        await here.serving("two")
        await load.more()
        await load.end()
        assert load.failed == []


async def test_agent_restart_under_load_fails_nothing() -> None:
    async with slot() as here:
        await here.engine("d001", "one")
        await here.serving("one")
        load = Load(here.room.port)
        await load.more()
        await here.room.agent.stop()
        await load.more()
        here.room.agent = here.room.make_agent()
        await here.room.agent.start()
        here.room.tell()
        await here.serving("one")
        await load.more()
        await load.end()
        assert load.failed == []
        await until(
            lambda: [one["state"] for one in here.status["weightSets"]] == ["sealed"], f"given back {here.status}"
        )


async def test_keeper_death_under_load_fails_nothing_and_it_gets_everything_back() -> None:
    async with slot() as here:
        engine = await here.engine("d001", "one")
        await here.serving("one")
        load = Load(here.room.port)
        await load.more()
        here.room.keeper.kill()
        here.room.keeper.wait()
        await until(lambda: here.holders() == {2}, "agent and launcher hold it")
        await load.more()
        here.room.start_keeper()
        await until(lambda: here.holders() == {3}, "the keeper, too")
        await load.more()
        await load.end()
        assert load.failed == []
        engine.send("ling-server")
        assert (await here.ask()).status_code == 200
        await here.attached("one")


async def test_fill_command_fills_and_ends_and_run_attaches() -> None:
    async with slot() as here:
        engine = await here.engine("d001", "filler", command="fill")
        assert await engine.exit() == 0, engine.log
        await here.engine("d002", "one")
        await here.serving("one")
        await here.attached("one")
