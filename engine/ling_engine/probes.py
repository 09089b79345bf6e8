"""The launcher's own small HTTP server for kubelet and Prometheus: /livez, /readyz, /metrics. GET only."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PATIENCE_S = 5.0
_MAX_HEAD = 8192

Answer = tuple[int, str]


class Probes:
    """`routes`: path -> coroutine that gives status and text."""

    def __init__(self, routes: dict[str, Callable[[], Awaitable[Answer]]]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Listens on all addresses; returns the port (of use when 0 was asked). Raises OSError."""
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", port, limit=_MAX_HEAD)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = await self._answer(head)
                body = text.encode()
                writer.write(
                    f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(body)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, head: bytes) -> Answer:
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3:
            return HTTPStatus.BAD_REQUEST, "not HTTP\n"
        if words[0] != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n"
        route = self._routes.get(words[1].split(b"?")[0].decode("latin-1"))
        if route is None:
            return HTTPStatus.NOT_FOUND, f"known paths: {', '.join(self._routes)}\n"
        return await route()
