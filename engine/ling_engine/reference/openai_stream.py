"""An answer on its way to the client: pieces of text, server-sent events, and the client that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from ling_engine import requests
from ling_engine.reference.openai_answer import Answer
from ling_engine.reference.openai_error import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from ling_engine.reference.generations import Generation
    from ling_engine.reference.openai_answer import Form
    from ling_engine.reference.openai_request import Ask

log = logging.getLogger(__name__)
BROKEN = ApiError(500, "the engine failed while it computed the answer; its log says why")


async def texts(generation: Generation, answer: Answer) -> AsyncIterator[str]:
    """Pieces of text, one a token (it may be empty), until the answer is over."""
    record, counts = requests.current(), generation.counts
    async for token in generation.tokens():
        record.token()
        record.verified(counts.rounds, counts.accepted, counts.correct)
        yield answer.add(token)
        if answer.finish:
            return


async def events(generation: Generation, ask: Ask, form: Form) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed answer."""
    if opening := form.opening():
        yield opening
    answer = Answer(ask)
    try:
        async for text in texts(generation, answer):
            if text or answer.finish:
                yield form.chunk(text, answer.finish)
    except Exception:  # whatever it is, the status line is sent: an event is the one way left to say so
        log.exception("generation failed")
        yield BROKEN.body()
        return
    if closing := form.closing(answer.tokens, generation.counts):
        yield closing


class EventStream(Response):
    """The chunks as server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[dict[str, Any]], generation: Generation) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._chunks, self._generation = chunks, generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with while_connected(receive, self._generation):
            async for chunk in self._chunks:
                data = json.dumps(chunk, separators=(",", ":"))
                await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@contextlib.asynccontextmanager
async def while_connected(receive: Receive, generation: Generation) -> AsyncIterator[None]:
    """Cancels the generation when the client goes away, and in any case when the block ends."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.cancel()
