"""HTTP on a listener: accept, adopt, drain. Real sockets on loopback, in one event loop."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.descriptors import open_descriptors

from ling_engine.metrics import ServerMetrics
from ling_engine.middleware import Middleware
from ling_engine.serving import SlotServer

BACKLOG = 321


class App:
    """Answers when `release` is set; at once by default."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.release.set()
        self.begun = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        self.begun += 1
        await self.release.wait()
        body = b'{"by":"app"}'
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})


class Engine:
    """A SlotServer with its application."""

    def __init__(self) -> None:
        self.app = App()
        self.metrics = ServerMetrics()
        self.http = SlotServer(Middleware(self.app, self.metrics), self.metrics)


class Client:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, text: bytes = b"") -> None:
        self.writer.write(text or b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
        body = await self.reader.readexactly(int(fields["content-length"]))
        return int(head[0].split()[1]), fields, json.loads(body)

    async def get(self) -> tuple[int, dict[str, str], Any]:
        self.ask()
        return await self.answer()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
def listener() -> Any:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(4)
    with sock:
        yield sock


@pytest.fixture
async def engine(listener: socket.socket) -> AsyncIterator[Engine]:
    engine = Engine()
    await engine.http.start()
    await engine.http.accept(os.dup(listener.fileno()), BACKLOG)
    yield engine
    await engine.http.drain(0.0, lambda fds: False)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


async def until(look: Any) -> None:
    async with asyncio.timeout(30):
        while not look():
            await asyncio.sleep(0.005)


async def test_it_answers_and_repeats_the_keepers_backlog(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    status, fields, body = await client.get()
    assert (status, body) == (200, {"by": "app"})
    assert "connection" not in fields
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert int.from_bytes(info[28:32], "little") == BACKLOG, "tcpi_sacked is the backlog of a listener"
    await client.close()


async def test_a_client_arrives_once_a_connection_with_its_first_generation(
    engine: Engine, listener: socket.socket
) -> None:
    asking, probing = await Client.to(port_of(listener)), await Client.to(port_of(listener))
    probing.ask(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await probing.answer())[0] == 200
    for _ in range(2):
        await asking.get()
    assert engine.metrics.performance()["arrivals"] == 1
    passed, kept = socket.socketpair()
    await engine.http.adopt([passed.detach()])
    adopted = Client(*await asyncio.open_connection(sock=kept))
    await adopted.get()
    assert engine.metrics.performance()["arrivals"] == 1, "who was passed on has come to another"
    for client in (asking, probing, adopted):
        await client.close()


async def test_a_drain_keeps_the_listener_alive_for_others(engine: Engine, listener: socket.socket) -> None:
    await engine.http.drain(5.0, lambda fds: False)
    with socket.create_connection(("127.0.0.1", port_of(listener)), timeout=30):
        accepted, _ = listener.accept()
        accepted.close()


async def test_a_drain_finishes_what_it_has_with_connection_close(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    engine.app.release.clear()
    client.ask()
    await until(lambda: engine.app.begun)
    drain = asyncio.create_task(engine.http.drain(5.0, lambda fds: False))
    await asyncio.sleep(0)
    engine.app.release.set()
    status, fields, _ = await client.answer()
    assert (status, fields["connection"]) == (200, "close")
    await drain
    assert await client.reader.read() == b""
    await client.close()


async def test_idle_connections_are_passed_and_served_by_the_successor(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    await client.get()
    before = open_descriptors()
    passed: list[int] = []

    def pass_on(fds: list[int]) -> bool:
        passed.extend(os.dup(fd) for fd in fds)
        return True

    successor = Engine()
    await successor.http.start()
    await engine.http.drain(5.0, pass_on)
    assert len(passed) == 1
    client.ask()  # on the wire before anybody reads it
    await successor.http.adopt(passed)
    await successor.http.accept(os.dup(listener.fileno()), BACKLOG)
    status, _, _ = await client.answer()
    assert (status, successor.app.begun, engine.app.begun) == (200, 1, 1)
    await client.close()
    await successor.http.drain(5.0, lambda fds: False)
    assert open_descriptors() <= before
    assert 'ling_connections_moved_total{direction="passed"} 1.0' in engine.metrics.text()
    assert 'ling_connections_moved_total{direction="adopted"} 1.0' in successor.metrics.text()


async def test_half_a_request_is_never_passed_but_answered(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    await client.get()
    client.ask(b"POST /v1/completions HTTP/1.1\r\nHost")
    await until(lambda: any(c.conn.trailing_data[0] for c in engine.http._uvicorn.server_state.connections))
    offered: list[int] = []
    drain = asyncio.create_task(engine.http.drain(5.0, lambda fds: bool(offered.extend(fds)) or True))
    await asyncio.sleep(0.05)
    assert offered == []
    client.ask(b": x\r\nContent-Length: 0\r\n\r\n")
    status, fields, _ = await client.answer()
    assert (status, fields["connection"]) == (200, "close")
    await drain
    await client.close()


async def test_what_nobody_takes_stays_open_and_is_answered(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    await client.get()
    drain = asyncio.create_task(engine.http.drain(5.0, lambda fds: False))
    await asyncio.sleep(0.05)
    assert not drain.done()
    status, fields, _ = await client.get()
    assert (status, fields["connection"]) == (200, "close")
    await drain
    await client.close()


@pytest.mark.parametrize("steps", range(6))
async def test_what_was_accepted_as_the_drain_began_is_answered(
    engine: Engine, listener: socket.socket, steps: int
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(listener)), timeout=30) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(steps):  # between accept() and the connection's own call-backs
            await asyncio.sleep(0)
        await engine.http.drain(5.0, lambda fds: False)
        listener.setblocking(False)
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            assert client.recv(12) == b"HTTP/1.1 200"
        else:
            accepted.close()  # not accepted by us: it waits for the successor


@pytest.mark.parametrize("steps", range(4))
async def test_a_listener_that_comes_with_the_word_to_drain_is_left_alone(engine: Engine, steps: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(4)
        accepting = asyncio.create_task(engine.http.accept(os.dup(other.fileno()), BACKLOG))
        for _ in range(steps):
            await asyncio.sleep(0)
        await engine.http.drain(5.0, lambda fds: False)
        await accepting
        assert not engine.http.accepting
        with socket.create_connection(("127.0.0.1", port_of(other)), timeout=30):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            other.settimeout(30)
            accepted, _ = other.accept()
            accepted.close()


async def test_a_request_longer_than_the_grace_period_is_told(engine: Engine, listener: socket.socket) -> None:
    client = await Client.to(port_of(listener))
    engine.app.release.clear()
    client.ask()
    await until(lambda: engine.app.begun)
    await engine.http.drain(0.05, lambda fds: False)
    status, fields, body = await client.answer()
    assert (status, fields["connection"]) == (503, "close")
    assert "grace period" in body["error"]["message"]
    assert engine.metrics.failed == 1
    await client.close()


async def test_a_new_listener_replaces_the_old(engine: Engine, listener: socket.socket) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(4)
        await engine.http.accept(os.dup(listener.fileno()), BACKLOG)  # the same one again is nothing new
        await engine.http.accept(os.dup(other.fileno()), BACKLOG)
        client = await Client.to(port_of(other))
        assert (await client.get())[0] == 200
        await client.close()
        with socket.create_connection(("127.0.0.1", port_of(listener)), timeout=30) as waiting:
            waiting.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            accepted, _ = listener.accept()
            accepted.close()


class Endless:
    """Streams for ever, once it has the whole request and `release` is set."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await App()(scope, receive, send)
            return
        while (await receive()).get("more_body", False):
            pass
        await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)


async def test_a_client_that_stalls_makes_no_engine_a_hung_one(listener: socket.socket) -> None:
    engine = Engine()
    app = Endless()
    engine.http = SlotServer(Middleware(app, engine.metrics), engine.metrics)
    await engine.http.start()
    await engine.http.accept(os.dup(listener.fileno()), BACKLOG)
    client = await Client.to(port_of(listener))

    def patience() -> float:
        return engine.metrics.performance()["patience_ms"]

    client.ask(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nxxxxx\r\n")
    await until(lambda: engine.metrics.in_flight)
    assert patience() == 0, "the body is not here"
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.ask(b"5\r\nxxxxx\r\n0\r\n\r\n")
    await until(lambda: patience() == 5010)  # ten bytes, in chunks: now it is the engine's turn
    app.release.set()
    await until(lambda: patience() == 0)
    assert engine.metrics.in_flight == 1, "for a drain it is"
    client.writer.transport.abort()
    await until(lambda: patience() == 5010)
    await engine.http.drain(0.0, lambda fds: False)
