"""The OpenAI-compatible application: completions, chat, models; errors in OpenAI's form."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ling_engine.reference import openai_request
from ling_engine.reference.generations import Overloaded
from ling_engine.reference.openai_answer import Answer, Form
from ling_engine.reference.openai_error import ApiError
from ling_engine.reference.openai_stream import BROKEN, EventStream, events, texts, while_connected

if TYPE_CHECKING:
    from starlette.requests import Request

    from ling_engine.reference.generations import Generations
    from ling_engine.reference.openai_request import Ask, Offer

_RETRY_SECONDS = "1"


def build(generations: Generations, offer: Offer) -> Starlette:
    """The application of one served model."""
    card = {"id": offer.model, "object": "model", "created": int(time.time()), "owned_by": "ling"}
    card["max_model_len"] = offer.context

    async def completions(request: Request) -> Response:
        return await answer(
            request, openai_request.completion(await request.body(), offer, secrets.randbits(63)), chat=False
        )

    async def chat(request: Request) -> Response:
        ask = openai_request.chat(await request.body(), offer, secrets.randbits(63))
        return await answer(request, ask, chat=True)

    async def answer(request: Request, ask: Ask, *, chat: bool) -> Response:
        generation = generations.submit(ask.prompt, ask.bounds)
        form = Form(chat=chat, model=offer.model, prompt_tokens=len(ask.prompt), usage=ask.usage)
        if ask.stream:
            return EventStream(events(generation, ask, form), generation)
        said = Answer(ask)
        async with while_connected(request.receive, generation):
            text = "".join([piece async for piece in texts(generation, said)])
        return JSONResponse(form.whole(text, said.finish, said.tokens, generation.counts))

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        openai_request.check_model(request.path_params["name"], offer)
        return JSONResponse(card)

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]
    handlers = {ApiError: _wrong, Overloaded: _busy, HTTPException: _no_route, Exception: _failed}
    return Starlette(routes=routes, exception_handlers=handlers)


async def _wrong(request: Request, error: Exception) -> Response:
    said = cast("ApiError", error)
    return JSONResponse(said.body(), said.status)


async def _busy(request: Request, error: Exception) -> Response:
    said = ApiError(429, "the queue is full: try again", code="queue_full")
    return JSONResponse(said.body(), said.status, {"retry-after": _RETRY_SECONDS})


async def _no_route(request: Request, error: Exception) -> Response:
    said = cast("HTTPException", error)
    wrong = ApiError(said.status_code, f"{request.method} {request.url.path}: {said.detail}")
    return JSONResponse(wrong.body(), wrong.status, dict(said.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(BROKEN.body(), BROKEN.status)
