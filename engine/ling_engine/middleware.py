"""Pure ASGI around a runtime's application: which paths exist, what is in flight, how fast, how a drain ends it.

Only listed paths reach the runtime (some runtimes have routes that write weights); all others are answered 403.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from . import requests

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .metrics import ServerMetrics

_log = logging.getLogger(__name__)
GENERATING = frozenset({"/v1/completions", "/v1/chat/completions", "/generate"})
_INFORMING = frozenset({"/v1/models"})
_INFORMING_BELOW = "/v1/models/"
_CUT = "the engine is being replaced and this request took longer than its grace period; send it again"


class Middleware:
    """Wraps `app`. Set `closing` to have connections closed after the responses that have not begun."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._running: set[_Exchange] = set()
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope["path"], send, self)
        if exchange.path in GENERATING:
            await self._generate(exchange, scope, receive)
        elif exchange.path in _INFORMING or exchange.path.startswith(_INFORMING_BELOW):
            await self._app(scope, receive, exchange.send)
        elif exchange.path == "/health":
            await exchange.answer(200, b'{"status":"ok"}', b"application/json")
        elif exchange.path == "/metrics":
            await exchange.answer(200, self._metrics.text().encode(), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            exchange.label = "other"
            await exchange.fail(403, f"the path {exchange.path} is not served here", "forbidden")
        self._metrics.answered(exchange.label, exchange.status)

    def cut(self) -> int:
        """Ends every running generation with an explicit error; returns how many there were."""
        for exchange in self._running:
            exchange.cut()
        return len(self._running)

    async def _generate(self, exchange: _Exchange, scope: Scope, receive: Receive) -> None:
        record = requests.RequestRecord(emitted=self._metrics.emitted)
        requests.enter(record)
        self._metrics.began()
        self._running.add(exchange)
        try:
            await self._app(scope, receive, exchange.send)
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
        finally:
            self._running.discard(exchange)
            self._metrics.ended(record)


class _Exchange:
    """One request and what was sent of its response."""

    def __init__(self, path: str, send: Send, owner: Middleware) -> None:
        self.path = path
        self.label = path if not path.startswith(_INFORMING_BELOW) else "/v1/models"
        self.status = 0
        self.was_cut = False
        self._complete = False
        self._events = False  # a stream of server-sent events
        self._send = send
        self._owner = owner
        self._task = asyncio.current_task()

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
        await self._send(message)

    async def answer(self, status: int, body: bytes, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
        fields = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def fail(self, status: int, text: str, kind: str) -> None:
        """An error in OpenAI's form."""
        await self.answer(status, json.dumps(_error(text, kind)).encode(), b"application/json")

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
