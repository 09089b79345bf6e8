"""From tokens to answers of the OpenAI API: text as it becomes certain, and the bodies around it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_engine.reference.tokenizer import Text

if TYPE_CHECKING:
    from ling_engine.reference.generations import Counts
    from ling_engine.reference.openai_request import Ask


class Answer:
    """The text of one answer. What may be the beginning of a stop text, or of a character, is held back."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._text, self._held = ask, Text(), ""
        self.tokens = 0
        self.finish: str | None = None  # stop | length, once it is over

    def add(self, token: int) -> str:
        """The text that is certain with this token."""
        self.tokens += 1
        if token == self._ask.bounds.eos:
            self.finish = "stop"
            return self._release(self._text.end())
        fresh = self._text.add(token)
        if self.tokens < self._ask.bounds.limit:
            return self._release(fresh)
        said = self._release(fresh + self._text.end())
        self.finish = self.finish or "length"
        said, self._held = said + self._held, ""
        return said

    def _release(self, fresh: str) -> str:
        text = self._held + fresh
        found = [at for stop in self._ask.stops if (at := text.find(stop)) >= 0]
        if found:
            self.finish, self._held = "stop", ""
            return text[: min(found)]
        keep = 0 if self.finish else max((_begun(text, stop) for stop in self._ask.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an endpoint spells its answers."""

    chat: bool
    model: str
    prompt_tokens: int
    usage: bool  # chunks of a stream carry a usage field
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, finish: str | None, tokens: int, counts: Counts) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._around("chat.completion", [choice]) | {"usage": self._usage(tokens, counts)}

    def opening(self) -> dict[str, Any] | None:
        """The first chunk: who speaks."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self.chat else None

    def chunk(self, text: str, finish: str | None) -> dict[str, Any]:
        """A chunk with text, with a reason to finish, or both."""
        if self.chat:
            return self._chunk({"delta": {"content": text} if text else {}}, finish)
        return self._chunk({"text": text}, finish)

    def closing(self, tokens: int, counts: Counts) -> dict[str, Any] | None:
        """The chunk with the counts, if they were asked for."""
        if not self.usage:
            return None
        return self._around("chat.completion.chunk", []) | {"usage": self._usage(tokens, counts)}

    def _chunk(self, said: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._around("chat.completion.chunk", [choice]) | ({"usage": None} if self.usage else {})

    def _around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", kind) if self.chat else ("cmpl", "text_completion")
        fixed = {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}
        return {**fixed, "choices": choices}

    def _usage(self, tokens: int, counts: Counts) -> dict[str, Any]:
        total = self.prompt_tokens + tokens
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": total}
        return usage | ({"completion_tokens_details": _details(tokens, counts)} if counts.rounds else {})


def _details(tokens: int, counts: Counts) -> dict[str, Any]:
    """SGLang's figures under its names. Its accept length of a request has all tokens above the rounds, the prompt's
    own one too: a short answer may show more than a round can give, and a truncated one less."""
    return {
        "spec_verify_ct": counts.rounds,
        "spec_num_correct_drafts": counts.correct,
        "spec_accept_length": tokens / counts.rounds,
    }
