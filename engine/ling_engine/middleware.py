"""Pure ASGI around a runtime's application: which paths exist, what is in flight, how fast, how a drain ends it.

Only listed paths reach the runtime (some runtimes have routes that write weights); all others are answered 403.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from . import requests
from .paths import OPENAI, Paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .metrics import ServerMetrics

_log = logging.getLogger(__name__)
_HEALTH, _METRICS = "/health", "/metrics"  # answered here: the first must not cost a generation
_RETRY_S = b"1"
ARRIVAL: Final = "ling.arrival"  # in the ASGI state of a new connection: a list, emptied by its first generation
_CUT = "the engine is being replaced and this request took longer than its grace period; send it again"


class Middleware:
    """Wraps `app`. Set `closing` to have connections closed after the responses that have not begun.

    `more_metrics` gives the runtime's own. More than `limit` generations at once are answered 429; 0: the application
    has a queue of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        *,
        paths: Paths = OPENAI,
        more_metrics: Callable[[], str] = str,
        limit: int = 0,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths
        self._more_metrics = more_metrics
        self._limit = limit
        self._open: set[_Exchange] = set()
        self._running: dict[_Exchange, requests.RequestRecord] = {}
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(scope["path"], receive, send, self)
            self._open.add(exchange)
            try:
                await self._answer(exchange, scope)
            finally:
                exchange.end()
        else:
            raise NotImplementedError(f"connections of type {scope['type']} are not served")

    async def _answer(self, exchange: _Exchange, scope: Scope) -> None:
        path, method, text = exchange.path, scope["method"], b"text/plain; version=0.0.4; charset=utf-8"
        if path == _HEALTH:
            exchange.label = path
            await exchange.answer(200, b'{"status":"ok"}', b"application/json")
            return
        if path == _METRICS:
            exchange.label = path
            await exchange.answer(200, (self._metrics.text() + self._more_metrics()).encode(), text)
            return
        exchange.label = self._paths.label(path)
        methods = self._paths.methods(path)
        if not methods:
            await exchange.fail(403, f"the path {path} is not served here", "forbidden")
        elif method not in methods:
            await exchange.fail(405, f"the path {path} answers {', '.join(sorted(methods))}", "method_not_allowed")
        elif path in self._paths.generating and method == "POST":
            await self._generate(exchange, scope)
        else:
            await self._app(scope, exchange.receive, exchange.send)

    @property
    def busy(self) -> bool:
        """Whether a response is not complete. An application may go on for a while after it; that is nobody's loss."""
        return bool(self._open)

    def ended(self, exchange: _Exchange) -> None:
        """Its last byte was sent, or none will be."""
        self._open.discard(exchange)
        record = self._running.pop(exchange, None)
        if record is not None:
            self._metrics.ended(record)
        self._metrics.answered(exchange.label, exchange.status)

    def cut(self) -> int:
        """Ends every running generation with an explicit error; returns how many there were."""
        for exchange in self._running:
            exchange.cut()
        return len(self._running)

    async def _generate(self, exchange: _Exchange, scope: Scope) -> None:
        arrival = scope.get("state", {}).get(ARRIVAL)
        if arrival:
            arrival.clear()
            self._metrics.arrivals += 1
        if self._limit and len(self._running) >= self._limit:
            await exchange.fail(429, "the queue is full: try again", "queue_full", (b"retry-after", _RETRY_S))
            return
        record = exchange.record
        record.emitted = self._metrics.emitted
        requests.enter(record)
        self._metrics.began(record)
        self._running[exchange] = record
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.was_cut:
                raise
            self._metrics.fail("grace")
            await exchange.end_cut(_CUT)
        except Exception as error:
            self._metrics.fail("error")
            _log.exception("request=failed path=%s", exchange.path)
            if exchange.status:
                raise
            await exchange.fail(500, f"the engine failed: {type(error).__name__}", "internal_error")


class _Exchange:
    """One request and what was sent of its response. Its record knows while it waits for the client."""

    def __init__(self, path: str, receive: Receive, send: Send, owner: Middleware) -> None:
        self.path = path
        self.record = requests.RequestRecord()
        self.label = "other"
        self.status = 0
        self.was_cut = False
        self._complete = False
        self._ended = False
        self._events = False  # a stream of server-sent events
        self._receive = receive
        self._send = send
        self._owner = owner
        self._task = asyncio.current_task()

    async def receive(self) -> Message:
        record = self.record
        if record.whole:  # the application listens for a client that goes away
            return await self._receive()
        with self._client():
            message = await self._receive()
        if message["type"] == "http.request":
            record.prompt_bytes += len(message.get("body", b""))
            record.whole = 0.0 if message.get("more_body", False) else time.monotonic()
        return message

    @contextlib.contextmanager
    def _client(self) -> Iterator[None]:
        """What is awaited in here is the client's to do."""
        self.record.client += 1
        try:
            yield
        finally:
            self.record.client -= 1

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            self._events = any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
            if self._owner.closing:
                headers = [(k, v) for k, v in headers if k.lower() != b"connection"] + [(b"connection", b"close")]
                message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
        with self._client():
            await self._send(message)
        if self._complete:
            self.end()

    def end(self) -> None:
        """Once, whichever comes first: the response is complete, or the application has returned."""
        if not self._ended:
            self._ended = True
            self._owner.ended(self)

    async def answer(self, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
        fields = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def fail(self, status: int, text: str, kind: str, *headers: tuple[bytes, bytes]) -> None:
        """An error in OpenAI's form."""
        await self.answer(status, json.dumps(_error(text, kind)).encode(), b"application/json", *headers)

    def cut(self) -> None:
        if not self.was_cut and not self._complete and self._task is not None:
            self.was_cut = True
            self._task.cancel()

    async def end_cut(self, text: str) -> None:
        """After `cut`: says why, if the response still has a place for it."""
        if self._task is not None:
            self._task.uncancel()
        if self._complete:
            return
        if not self.status:
            await self.fail(503, text, "engine_replaced")
        elif self._events:
            data = f"data: {json.dumps(_error(text, 'engine_replaced'))}\n\n".encode()
            await self.send({"type": "http.response.body", "body": data, "more_body": False})
        else:
            raise ConnectionAbortedError(text)  # half a body: only a broken connection tells the client


def _error(text: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": kind, "param": None, "code": kind}}
