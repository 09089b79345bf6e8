"""One kept connection to an endpoint. While a stream runs, nothing happens here but stamping its lines.

The standard library's client: a line costs some microseconds, every one the same, which falls out of differences. JSON
is read after the stream, the garbage collector waits, and all requests use one connection, so that behind a Service
they meet one engine, whose counters are then those of these answers.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ling_api.errors import BadInput

from .errors import EndpointFailed
from .stream import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ("LING_BENCH_API_KEY", "OPENAI_API_KEY")
_LOST = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)  # what an idle connection dies of


class Client:
    """`connections` counts how often it had to connect."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise BadInput(f"{url!r} is no address of an endpoint; write http://HOST:PORT")
        self.host = parts.hostname
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._prefix = parts.path
        self._headers = {"Content-Type": "application/json", "Connection": "keep-alive"}
        key = next((os.environ[name] for name in KEYS if os.environ.get(name)), "")
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.connections = 0

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; status 0 and why, if nobody answers."""
        try:
            answer = self._send("GET", path, None)
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return 0, f"{type(error).__name__}: {error}"

    def stream(self, path: str, body: dict[str, Any]) -> Raw:
        """The stamped lines of a streamed answer. Raises EndpointFailed."""
        data, lines = json.dumps(body).encode(), list[tuple[float, bytes]]()
        try:
            with _no_collection():
                began = time.perf_counter()
                answer = self._send("POST", path, data)
                if answer.status == 200:
                    while line := answer.readline():
                        lines.append((time.perf_counter(), line))
            said = answer.read().decode(errors="replace")  # of a stream nothing is left
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise EndpointFailed(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise EndpointFailed(f"{self.url}{path} answered {answer.status}: {' '.join(said.split())[:400]}")
        return Raw(began=began, lines=tuple(lines))

    def _send(self, method: str, path: str, data: bytes | None) -> http.client.HTTPResponse:
        """Once more on a new connection, if the kept one turns out to be closed."""
        kept = self._connection.sock is not None
        if not kept:
            self.connections += 1
        try:
            self._connection.request(method, self._prefix + path, data, self._headers)
            return self._connection.getresponse()
        except _LOST:
            self._connection.close()
            if not kept:
                raise
            return self._send(method, path, data)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
