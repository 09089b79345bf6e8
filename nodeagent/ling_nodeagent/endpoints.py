"""The agent's own HTTP: /metrics, /livez, /readyz. Answered by the agent's loop, so an answer proves that it turns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

LOG = logging.getLogger("ling.endpoints")
SECONDS = 5.0  # to send a request


class Endpoints:
    """`ready()` is the reason why not, or nothing."""

    def __init__(self, collector: Collector, ready: Callable[[], str]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._ready = ready
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", port)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = self._answer(head.split(b" ", 2)[1:2])
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    f"Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    def _answer(self, path: list[bytes]) -> tuple[str, str, bytes]:
        text = "text/plain; charset=utf-8"
        if path == [b"/metrics"]:
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == [b"/livez"]:
            return "200 OK", text, b"alive\n"
        if path == [b"/readyz"]:
            reason = self._ready()
            return ("503 Service Unavailable" if reason else "200 OK"), text, f"{reason or 'ready'}\n".encode()
        return "404 Not Found", text, b"ask /metrics, /livez or /readyz\n"
