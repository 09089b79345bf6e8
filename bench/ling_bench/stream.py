"""From stamped lines of a stream of server-sent events to an answer: when tokens came, how many, how it ended. Pure.

The client stamps lines while the stream runs and does nothing else; they are read here, when it is over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import EndpointFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

_DATA = b"data:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Seconds of one monotonic clock."""

    began: float
    lines: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`times`: seconds from the request's beginning to each chunk with tokens; a chunk may bring several."""

    times: tuple[float, ...]
    tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None  # of the prompt, from a prefix cache; None: the endpoint does not say
    rounds: int | None  # of verification; None: the endpoint does not say it of a request
    finish: str | None

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first."""
        return (self.times[-1] - self.times[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds from chunk to chunk."""
        return [two - one for one, two in zip(self.times, self.times[1:], strict=False)]


def read(raw: Raw) -> Answer:
    """Raises EndpointFailed for an error in the stream, for a stream without tokens or without their number, and for
    events of another shape than the API's.
    """
    times, usage, rounds, finish = list[float](), dict[str, Any](), None, None
    for when, event in _events(raw.lines):
        if "error" in event:
            raise EndpointFailed(f"the endpoint ended the answer with an error: {json.dumps(event['error'])[:300]}")
        usage = _object(event, "usage") or usage
        rounds = _verified(event, rounds)
        for choice in _choices(event):
            finish = str(choice.get("finish_reason") or "") or finish
            if _has_token(choice):
                times.append(when - raw.began)
    if not times:
        raise EndpointFailed("an answer without a token")
    tokens = _count(usage, "completion_tokens")
    if tokens is None or tokens < 1:
        raise EndpointFailed("the stream does not tell how many tokens it had: stream_options.include_usage is needed")
    rounds = _count(_object(usage, "completion_tokens_details"), "spec_verify_ct", rounds)
    return Answer(
        times=tuple(times), tokens=tokens, prompt_tokens=_count(usage, "prompt_tokens"), rounds=rounds, finish=finish,
        cached_tokens=_count(_object(usage, "prompt_tokens_details"), "cached_tokens"),
    )  # fmt: skip


def _events(lines: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, dict[str, Any]]]:
    for when, line in lines:
        text = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
        if not text or text == b"[DONE]":
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            raise EndpointFailed(f"an event of the stream is no JSON: {text[:100]!r}") from None
        if isinstance(event, dict):
            yield when, event


def _object(outer: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of that name; what is not there, or null, is empty."""
    found = outer.get(name) or {}
    if not isinstance(found, dict):
        raise EndpointFailed(f"the stream's `{name}` is no JSON object: {json.dumps(found)[:100]}")
    return found


def _count(outer: dict[str, Any], name: str, before: int | None = None) -> int | None:
    """The whole number of that name, else what was known before."""
    found = outer.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else before


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    found = event.get("choices") or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise EndpointFailed(f"the stream's `choices` is no list of JSON objects: {json.dumps(found)[:100]}")
    return found


def _has_token(choice: dict[str, Any]) -> bool:
    """A completion's chunk has; its text is empty while a character is incomplete. A chat's first tells who speaks."""
    if "delta" not in choice:
        return True
    delta = _object(choice, "delta")
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _verified(event: dict[str, Any], before: int | None) -> int | None:
    return _count(_object(_object(event, "sglext"), "spec_tokens_details"), "spec_verify_ct", before)
