"""From a request of the OpenAI API to what is to be generated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_engine.reference import openai_fields
from ling_engine.reference.bounds import GREEDY, Bounds, Sampling
from ling_engine.reference.openai_error import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_engine.reference.tokenizer import ByteTokenizer

DEFAULT_TOKENS = 16  # as OpenAI has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What requests are held against: name, tokens of prompt and answer together, ids."""

    model: str
    context: int
    vocabulary: int
    tokenizer: ByteTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that can be answered. `usage`: a stream ends with the counts."""

    prompt: list[int]
    bounds: Bounds
    stops: tuple[str, ...]
    stream: bool
    usage: bool


def completion(raw: bytes, offer: Offer, seed: int) -> Ask:
    """/v1/completions; `seed` is for a request that has none. Raises ApiError."""
    body = {"seed": seed} | _body(raw, offer, openai_fields.COMPLETION, "prompt")
    given = body["prompt"]
    if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], int):
        given = given[0]
    prompt = offer.tokenizer.encode(given) if isinstance(given, str) else given
    if not all(0 <= token < offer.vocabulary for token in prompt):
        raise ApiError(400, f"prompt: token ids are 0 to {offer.vocabulary - 1}", "prompt")
    prompt = prompt or [offer.tokenizer.bos]
    return _ask(body, offer, prompt, "prompt", min(DEFAULT_TOKENS, max(1, offer.context - len(prompt))))


def chat(raw: bytes, offer: Offer, seed: int) -> Ask:
    """/v1/chat/completions; the same. Raises ApiError."""
    body = {"seed": seed} | _body(raw, offer, openai_fields.CHAT, "messages")
    if "max_tokens" in body and "max_completion_tokens" in body:
        raise ApiError(400, "max_tokens and max_completion_tokens say the same: write one of them", "max_tokens")
    prompt = offer.tokenizer.chat([(message["role"], _text(message["content"])) for message in body["messages"]])
    body["max_tokens"] = body.get("max_completion_tokens", body.get("max_tokens"))
    return _ask(body, offer, prompt, "messages", max(1, offer.context - len(prompt)))


def check_model(name: str, offer: Offer) -> None:
    """Raises ApiError 404 for any model but the served one."""
    if name != offer.model:
        raise ApiError(404, f"model {name!r} is not served here: write {offer.model!r}", "model", "model_not_found")


def _body(raw: bytes, offer: Offer, fields: Mapping[str, openai_fields.Field], prompt: str) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    checked = openai_fields.check(body, fields, ("model", prompt))
    check_model(checked["model"], offer)
    return checked


def _ask(body: Mapping[str, Any], offer: Offer, prompt: list[int], param: str, default: int) -> Ask:
    limit = body.get("max_tokens") or default
    if len(prompt) + limit > offer.context:
        said = f"the context holds {offer.context} tokens; asked for {len(prompt)} of prompt and {limit} of answer"
        raise ApiError(400, f"{said}: shorten {param} or max_tokens", param, "context_length_exceeded")
    stream, stops = body.get("stream", False), body.get("stop", [])
    return Ask(
        prompt=prompt,
        bounds=Bounds(
            limit=limit, eos=None if body.get("ignore_eos") else offer.tokenizer.eos, sampling=_sampling(body)
        ),
        stops=tuple(stop for stop in ([stops] if isinstance(stops, str) else stops) if stop),
        stream=stream,
        usage=_usage(body.get("stream_options"), stream),
    )


def _sampling(body: Mapping[str, Any]) -> Sampling:
    if not body.get("temperature"):
        return GREEDY
    return Sampling(temperature=body["temperature"], top_p=body.get("top_p", 1.0), seed=body["seed"])


def _usage(options: Mapping[str, Any] | None, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise ApiError(400, "stream_options: only for a stream", "stream_options")
    if options.keys() - {"include_usage"} or not isinstance(options.get("include_usage", False), bool):
        raise ApiError(400, "stream_options: the one option is include_usage, true or false", "stream_options")
    return bool(options.get("include_usage", False))


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
