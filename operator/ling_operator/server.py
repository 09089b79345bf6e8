"""A small HTTP server for /metrics, /livez and /readyz. One request per connection."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

type Answer = tuple[int, bytes]
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_LONGEST_REQUEST: Final = 5.0  # seconds


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path; the headers are read and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    method, path, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return method, path.split("?", 1)[0]


async def serve(port: int, routes: Mapping[str, Callable[[], Answer]]) -> asyncio.Server:
    """Listen on all addresses; each route answers (status, body). BadInput when the port is taken."""

    def answer(method: str, path: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return 405, b"use GET\n"
        route = routes.get(path)
        return route() if route is not None else (404, f"try {', '.join(routes)}\n".encode())

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LONGEST_REQUEST):
                method, path = await _read_request(reader)
                status, body = answer(method, path)
                head = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("request dropped error=%s", error)
        finally:
            writer.close()

    try:
        return await asyncio.start_server(connection, "0.0.0.0", port)
    except OSError as error:
        raise BadInput(f"--port: cannot listen on {port}: {error.strerror}; choose another") from error
