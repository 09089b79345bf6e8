"""The hook between a runtime's application and the middleware: who emits a token says so, here it is timed.

`current()` in the application returns the record of the request being answered; `token()` on it marks tokens as they
are emitted, so that time to first token and time per output token are measured in one place for every runtime.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _nobody(_count: int) -> None:
    """Whose tokens nobody counts."""


@dataclass(slots=True)
class RequestRecord:
    """Times of one request, in seconds of the monotonic clock."""

    began: float = field(default_factory=time.monotonic)
    first: float = 0.0  # when the first token was emitted
    last: float = 0.0
    whole: float = 0.0  # when all of the request was here; a client may take its time over the body
    prompt_bytes: int = 0  # of the request's body, as far as it came
    client: int = 0  # how often it waits for its client just now: for the rest of the body, or to be read
    tokens: int = 0
    rounds: int = 0  # of speculative decoding: how often the target verified drafts
    accepted: int = 0  # tokens that those rounds gave
    correct: int = 0  # drafts that the target agreed with
    emitted: Callable[[int], None] = _nobody  # is told of tokens as they come, not only when the request ends

    def token(self, count: int = 1, since: float = 0.0) -> None:
        """`count` tokens were emitted just now; `since` = when the first of them was, where they come in bundles."""
        now = time.monotonic()
        if not self.tokens:
            self.first = since if self.began < since < now else now
        self.last = now
        self.tokens += count
        self.emitted(count)

    def verified(self, rounds: int, accepted: int, correct: int) -> None:
        """So much speculative decoding in all, up to now."""
        self.rounds, self.accepted, self.correct = rounds, accepted, correct

    @property
    def ttft(self) -> float | None:
        """Seconds from the request to its first token."""
        return self.first - self.began if self.tokens else None

    @property
    def reading(self) -> float | None:
        """Seconds from the whole request to its first token."""
        return self.first - max(self.began, self.whole) if self.tokens else None

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


_current: ContextVar[RequestRecord | None] = ContextVar("ling_request", default=None)


def current() -> RequestRecord:
    """The record of the running request; outside of one (warm-up) a record that nobody reads."""
    return _current.get() or RequestRecord()


def enter(record: RequestRecord) -> None:
    """Makes `record` the running request's, for this task and those it starts."""
    _current.set(record)
