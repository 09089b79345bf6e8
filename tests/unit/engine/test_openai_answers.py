"""The OpenAI application: what it refuses and how, and what it says token by token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ling_engine import requests
from ling_engine.reference import app
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.generations import Generation, Overloaded
from ling_engine.reference.openai_answer import Answer
from ling_engine.reference.openai_request import Ask, Offer
from ling_engine.reference.speculate import Round
from ling_engine.reference.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

EOS = 257
OFFER = Offer(model="tiny", context=64, vocabulary=264, tokenizer=ByteTokenizer(bos=256, eos=EOS))


class Scripted:
    """Answers every request with the same tokens, as far as its limit goes."""

    def __init__(self, tokens: Sequence[int | Exception] = b"abc", *, full: bool = False) -> None:
        self.tokens, self.full = tokens, full
        self.asked: list[tuple[list[int], int, int | None]] = []

    def submit(self, prompt: list[int], bounds: Bounds) -> Generation:
        if self.full:
            raise Overloaded
        self.asked.append((prompt, bounds.limit, bounds.eos))
        self.sampling = bounds.sampling
        generation = Generation()
        for token in self.tokens[: bounds.limit]:
            generation.emit(token if isinstance(token, Exception) else Round([token]))
        generation.emit(None)
        return generation


async def post(scripted: Scripted, path: str, body: Any, *, raises: bool = True) -> httpx.Response:
    transport = httpx.ASGITransport(app.build(scripted, OFFER), raise_app_exceptions=raises)  # type: ignore[arg-type]  # all that is asked of it
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, content=content)


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hello", **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


async def test_a_completion() -> None:
    scripted = Scripted(b"abcdef")
    response = await post(scripted, "/v1/completions", completion(max_tokens=3))
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert scripted.asked == [(list(b"Hello"), 3, EOS)]


async def test_a_chat_completion_renders_roles_and_takes_the_rest_of_the_context() -> None:
    scripted = Scripted([*b"ok", EOS])
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    body = (await post(scripted, "/v1/chat/completions", chat(messages=messages))).json()
    prompt = [256, *b"system: S\nuser: U\nassistant: "]
    assert scripted.asked == [(prompt, 64 - len(prompt), EOS)]
    message = {"role": "assistant", "content": "ok"}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, (list(b"Hello"), 16, EOS)),
        ({"prompt": [1, 2, 263]}, ([1, 2, 263], 16, EOS)),
        ({"prompt": ["one"]}, (list(b"one"), 16, EOS)),
        ({"prompt": [[7, 8]]}, ([7, 8], 16, EOS)),
        ({"prompt": ""}, ([256], 16, EOS)),
        ({"prompt": "é"}, ([0xC3, 0xA9], 16, EOS)),
        ({"prompt": "x" * 60}, (list(b"x" * 60), 4, EOS)),
        ({"ignore_eos": True}, (list(b"Hello"), 16, None)),
        ({"max_tokens": None, "temperature": 0.0, "n": 1, "echo": False, "logprobs": None}, (list(b"Hello"), 16, EOS)),
        ({"seed": 3, "user": "me", "top_p": 0.5, "logit_bias": {}, "suffix": ""}, (list(b"Hello"), 16, EOS)),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_generated_for_a_request(
    fields: dict[str, Any], asked: tuple[list[int], int, int | None]
) -> None:
    scripted = Scripted()
    response = await post(scripted, "/v1/completions", completion(**fields))
    assert response.status_code == 200, response.text
    assert scripted.asked == [asked]


WRONG: dict[str, tuple[str, Any, int, str | None, str | None]] = {
    "no-json": ("completions", b"{", 400, None, None),
    "no-object": ("completions", [1], 400, None, None),
    "deep": ("completions", b"[" * 100_000, 400, None, None),
    "no-model": ("completions", {"prompt": "x"}, 400, "model", None),
    "model-type": ("completions", completion(model=3), 400, "model", None),
    "other-model": ("completions", completion(model="gpt"), 404, "model", "model_not_found"),
    "no-prompt": ("completions", {"model": "tiny"}, 400, "prompt", None),
    "two-prompts": ("completions", completion(prompt=["a", "b"]), 400, "prompt", None),
    "prompt-type": ("completions", completion(prompt=5), 400, "prompt", None),
    "prompt-bools": ("completions", completion(prompt=[True]), 400, "prompt", None),
    "id-too-large": ("completions", completion(prompt=[264]), 400, "prompt", None),
    "id-negative": ("completions", completion(prompt=[-1]), 400, "prompt", None),
    "max-tokens-zero": ("completions", completion(max_tokens=0), 400, "max_tokens", None),
    "max-tokens-text": ("completions", completion(max_tokens="3"), 400, "max_tokens", None),
    "max-tokens-float": ("completions", completion(max_tokens=1.5), 400, "max_tokens", None),
    "max-tokens-bool": ("completions", completion(max_tokens=True), 400, "max_tokens", None),
    "temperature": ("completions", completion(temperature=2.1), 400, "temperature", None),
    "temperature-false": ("completions", completion(temperature=False), 400, "temperature", None),
    "top-p": ("completions", completion(top_p=2), 400, "top_p", None),
    "n": ("completions", completion(n=2), 400, "n", None),
    "best-of": ("completions", completion(best_of=3), 400, "best_of", None),
    "logprobs": ("completions", completion(logprobs=1), 400, "logprobs", None),
    "echo": ("completions", completion(echo=True), 400, "echo", None),
    "suffix": ("completions", completion(suffix="x"), 400, "suffix", None),
    "stop-many": ("completions", completion(stop=["a"] * 5), 400, "stop", None),
    "stop-type": ("completions", completion(stop=[1]), 400, "stop", None),
    "stream-type": ("completions", completion(stream="yes"), 400, "stream", None),
    "stream-options-alone": ("completions", completion(stream_options={}), 400, "stream_options", None),
    "stream-options-other": (
        "completions",
        completion(stream=True, stream_options={"x": 1}),
        400,
        "stream_options",
        None,
    ),
    "penalty": ("completions", completion(presence_penalty=1), 400, "presence_penalty", None),
    "bias": ("completions", completion(logit_bias={"5": 1}), 400, "logit_bias", None),
    "seed": ("completions", completion(seed="x"), 400, "seed", None),
    "unknown": ("completions", completion(top_k=4), 400, "top_k", None),
    "too-long": ("completions", completion(prompt="x" * 65), 400, "prompt", "context_length_exceeded"),
    "too-much": ("completions", completion(max_tokens=60), 400, "prompt", "context_length_exceeded"),
    "no-messages": ("chat/completions", {"model": "tiny"}, 400, "messages", None),
    "empty-messages": ("chat/completions", chat(messages=[]), 400, "messages", None),
    "role": ("chat/completions", chat(messages=[{"role": "tool", "content": "x"}]), 400, "messages", None),
    "no-content": ("chat/completions", chat(messages=[{"role": "user"}]), 400, "messages", None),
    "picture": (
        "chat/completions",
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        400,
        "messages",
        None,
    ),
    "tools": ("chat/completions", chat(tools=[{"type": "function"}]), 400, "tools", None),
    "format": ("chat/completions", chat(response_format={"type": "json_object"}), 400, "response_format", None),
    "chat-logprobs": ("chat/completions", chat(logprobs=True), 400, "logprobs", None),
    "two-limits": ("chat/completions", chat(max_tokens=1, max_completion_tokens=1), 400, "max_tokens", None),
    "chat-too-long": (
        "chat/completions",
        chat(max_completion_tokens=60),
        400,
        "messages",
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize(("path", "body", "status", "param", "code"), WRONG.values(), ids=WRONG)
async def test_a_wrong_request_is_refused_in_openais_form(
    path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    scripted = Scripted()
    response = await post(scripted, f"/v1/{path}", body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert param is None or param in error["message"]
    assert scripted.asked == []


async def test_a_full_queue_is_429_with_retry_after() -> None:
    response = await post(Scripted(full=True), "/v1/completions", completion())
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
async def test_unknown_routes_are_errors_in_openais_form(method: str, path: str, status: int) -> None:
    transport = httpx.ASGITransport(app.build(Scripted(), OFFER))  # type: ignore[arg-type]  # all that is asked of it
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.request(method, path)
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/tiny")).json()
        other = await client.get("/v1/models/gpt")
    assert response.status_code == status
    assert path in response.json()["error"]["message"]
    assert listed["object"] == "list"
    assert listed["data"] == [one]
    assert (one["id"], one["object"], one["max_model_len"]) == ("tiny", "model", 64)
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_stream_of_a_completion_with_usage() -> None:
    options = {"include_usage": True}
    response = await post(
        Scripted(b"abc"), "/v1/completions", completion(stream=True, stream_options=options, max_tokens=3)
    )
    *said, last = chunks(response)
    assert [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in said] == [
        ("a", None),
        ("b", None),
        ("c", "length"),
    ]
    assert all(chunk["usage"] is None for chunk in said)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert len({chunk["id"] for chunk in (*said, last)}) == 1


async def test_a_stream_of_a_chat_without_usage() -> None:
    response = await post(Scripted([*b"ab", EOS]), "/v1/chat/completions", chat(stream=True))
    said = chunks(response)
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in said] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "a"}, None),
        ({"content": "b"}, None),
        ({}, "stop"),
    ]
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in said)


async def test_a_character_of_several_tokens_comes_whole() -> None:
    response = await post(Scripted("a€b".encode()), "/v1/completions", completion(stream=True, max_tokens=5))
    assert [chunk["choices"][0]["text"] for chunk in chunks(response)] == ["a", "€", "b"]


async def test_a_failure_in_mid_answer_is_an_error_and_an_error_event() -> None:
    broken = Scripted([97, ValueError("no memory")])
    whole = await post(broken, "/v1/completions", completion(), raises=False)
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
    first, last = chunks(await post(broken, "/v1/completions", completion(stream=True)))
    assert first["choices"][0]["text"] == "a"
    assert last["error"]["type"] == "server_error"


async def test_every_token_is_timed() -> None:
    for stream in (False, True):
        record = requests.RequestRecord()
        requests.enter(record)
        await post(Scripted([*b"ab", 260, EOS]), "/v1/completions", completion(stream=stream))
        assert record.tokens == 4


def said(tokens: Sequence[int], *stops: str, limit: int = 99) -> tuple[list[str], str | None, int]:
    answer = Answer(Ask(prompt=[1], bounds=Bounds(limit=limit, eos=EOS), stops=stops, stream=True, usage=False))
    pieces = []
    for token in tokens:
        pieces.append(answer.add(token))
        if answer.finish:
            break
    return pieces, answer.finish, answer.tokens


@pytest.mark.parametrize(
    ("tokens", "stops", "limit", "pieces", "finish"),
    [
        (b"abc", (), 3, ["a", "b", "c"], "length"),
        ([*b"ab", EOS, 99], (), 9, ["a", "b", ""], "stop"),
        (b"a--b", ("--",), 9, ["a", "", ""], "stop"),
        (b"a-b", ("--",), 9, ["a", "", "-b"], None),
        (b"a-", ("--",), 2, ["a", "-"], "length"),
        ([*b"a-", EOS], ("--",), 9, ["a", "", "-"], "stop"),
        (b"aab!", ("ab!",), 9, ["", "a", "", ""], "stop"),
        (b"xyz", ("yq", "z"), 9, ["x", "", "y"], "stop"),
        (b"abcd", ("cd", "bc"), 9, ["a", "", ""], "stop"),
        ("é!".encode(), ("!",), 9, ["", "é", ""], "stop"),
        ("é".encode()[:1], (), 1, ["\ufffd"], "length"),
        ([*"€".encode()[:2], 65], (), 9, ["", "", "\ufffdA"], None),
        ([*"€".encode()[:2], EOS], (), 9, ["", "", "\ufffd"], "stop"),
        ([260, 65], (), 9, ["", "A"], None),
    ],
    ids=[
        "limit",
        "eos",
        "stop-over-two-tokens",
        "no-stop-after-all",
        "half-a-stop-at-the-limit",
        "half-a-stop-at-eos",
        "stop-that-begins-twice",
        "second-stop",
        "earliest-stop",
        "character-then-stop",
        "half-a-character",
        "broken-character",
        "half-a-character-at-eos",
        "id-without-text",
    ],
)
def test_text_of_an_answer(
    tokens: Sequence[int], stops: tuple[str, ...], limit: int, pieces: list[str], finish: str | None
) -> None:
    assert said(tokens, *stops, limit=limit)[:2] == (pieces, finish)
