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
    """Raises EndpointFailed for an error in the stream, for a stream without tokens or without their number."""
    times, usage, rounds, finish = list[float](), dict[str, Any](), None, None
    for when, event in _events(raw.lines):
        if "error" in event:
            raise EndpointFailed(f"the endpoint ended the answer with an error: {json.dumps(event['error'])[:300]}")
        usage = event.get("usage") or usage
        rounds = _verified(event, rounds)
        for choice in event.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            if _has_token(choice):
                times.append(when - raw.began)
    if not times:
        raise EndpointFailed("an answer without a token")
    tokens = usage.get("completion_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise EndpointFailed("the stream does not tell how many tokens it had: stream_options.include_usage is needed")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        times=tuple(times), tokens=tokens, prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"), finish=finish,
        rounds=(usage.get("completion_tokens_details") or {}).get("spec_verify_ct", rounds),
    )  # fmt: skip


def _events(lines: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, dict[str, Any]]]:
    for when, line in lines:
        text = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
        if not text or text == b"[DONE]":
            continue
        try:
            event = json.loads(text)
        except ValueError:
            raise EndpointFailed(f"an event of the stream is no JSON: {text[:100]!r}") from None
        if isinstance(event, dict):
            yield when, event


def _has_token(choice: dict[str, Any]) -> bool:
    """A completion's chunk has; its text is empty while a character is incomplete. A chat's first tells who speaks."""
    if "delta" not in choice:
        return True
    delta = choice["delta"] or {}
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _verified(event: dict[str, Any], before: int | None) -> int | None:
    told = (event.get("sglext") or {}).get("spec_tokens_details")
    return told.get("spec_verify_ct", before) if isinstance(told, dict) else before
