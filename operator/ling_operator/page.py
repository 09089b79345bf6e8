"""The read-only page: one HTML file and a stream of server-sent events, on loopback alone.

Who wants to see it forwards the port (`kubectl ling dashboard`), so the API server decides who may. A request whose
Host is no loopback name is refused: a web page elsewhere cannot point a name of its own at it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput
from ling_operator import picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ling_operator.mirror import Mirror

log = logging.getLogger(__name__)

LOOK: Final = 0.3  # seconds between two looks at what changed
BEAT: Final = 10.0  # seconds of silence at most: a proxy must not take the stream for dead
MOST: Final = 32  # streams at once
_PATIENCE: Final = 5.0  # seconds to send a request
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")

type Look = Callable[[], Awaitable[dict[str, Any]]]


def looking_at(mirror: Mirror) -> Look:
    """The picture of what the operator knows now."""

    async def look() -> dict[str, Any]:
        kinds = ("LingDeployment", "LingSlot", "Node", "Pod")
        return picture.draw(*[await mirror.list(kind, "") for kind in kinds])

    return look


async def changes(look: Look) -> AsyncIterator[bytes]:
    """Events of the stream: the picture whenever it is another one, a comment when nothing happens for long."""
    last, quiet = "", 0.0
    while True:
        now = json.dumps(await look(), separators=(",", ":"))
        if now != last:
            last, quiet = now, 0.0
            yield f"data: {now}\n\n".encode()
        elif quiet >= BEAT:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(LOOK)
        quiet += LOOK


class Page:
    """The server; `start` listens on loopback."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._html = resources.files("ling_operator").joinpath("page.html").read_bytes()
        self._streams: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """The port (of use when 0 was asked). Raises BadInput when it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=8192)
        except OSError as error:
            raise BadInput(f"--page-port: cannot listen on {port}: {error.strerror}; choose another, or 0") from error
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._streams):
            writer.transport.abort()  # its next write ends the stream's task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head.decode("latin-1"), writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("page request dropped error=%s", error)
        except asyncio.CancelledError:
            log.debug("page stream ends with the process")
        finally:
            writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        method, _, rest = head.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if not loopback(head):
            await _send(writer, "403 Forbidden", "text/plain", b"ask by a loopback name\n")
        elif method != "GET" or path not in ("/", "/events"):
            await _send(writer, "404 Not Found", "text/plain", b"GET / or /events\n")
        elif path == "/":
            await _send(writer, "200 OK", "text/html; charset=utf-8", self._html)
        elif len(self._streams) >= MOST:
            await _send(writer, "503 Service Unavailable", "text/plain", b"too many look at it already\n")
        else:
            await self._stream(writer)

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        self._streams.add(writer)
        try:
            writer.write(_head("200 OK", "text/event-stream"))
            async for event in changes(self._look):
                writer.write(event)
                await writer.drain()
        finally:
            self._streams.discard(writer)


def loopback(head: str) -> bool:
    """Whether the request's Host is a loopback name."""
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "host":
            host = value.strip().lower()
            return host in _HOSTS or host.rpartition(":")[0] in _HOSTS
    return False


def _head(status: str, kind: str, size: int | None = None) -> bytes:
    length = "" if size is None else f"Content-Length: {size}\r\n"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}Cache-Control: no-store\r\nConnection: close\r\n"
        f"Content-Security-Policy: {_POLICY}\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    ).encode()


async def _send(writer: asyncio.StreamWriter, status: str, kind: str, body: bytes) -> None:
    writer.write(_head(status, kind, len(body)) + body)
    await writer.drain()
