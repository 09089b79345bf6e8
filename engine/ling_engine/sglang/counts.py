"""What a request has shown so far, read from SGLang's output batches.

The figures are SGLang's own: `completion_tokens`, `spec_verify_ct` (rounds in which the target verified drafts) and
`spec_num_correct_drafts`. A round gives its correct drafts and one token of the target; the first token of a request,
and the first after each retraction, come from a prefill and from no round. So the accept length, tokens of rounds by
rounds, is never more than the draft tokens of a round + 1 (SGLang's own per request divides all tokens by the rounds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ling_engine.requests import RequestRecord


class Count:
    """What one request has shown so far."""

    def __init__(self, record: RequestRecord, *, streamed: bool) -> None:
        self._record = record
        self._streamed = streamed
        self._tokens = self._rounds = self._accepted = self._correct = 0

    def output(self, batch: Any, at: int, times: Any) -> None:
        """Row `at` of an output batch; its counts are totals of the request."""
        tokens = batch.completion_tokens[at]
        if tokens > self._tokens:
            # An answer that is not streamed comes in bundles: the scheduler knows when its first token was there.
            since = 0.0 if self._streamed else float(getattr(times, "prefill_finished_time", 0.0))
            self._record.token(tokens - self._tokens, since)
        self._tokens = tokens
        rounds = _of(batch, "spec_verify_ct", at)
        if rounds:
            self._verified(
                rounds, accepted(tokens, batch.retraction_counts[at]), _of(batch, "spec_num_correct_drafts", at)
            )

    def _verified(self, rounds: int, accepted: int, correct: int) -> None:
        """One HTTP request may be several of SGLang's: what is new is added."""
        record = self._record
        record.verified(
            record.rounds + rounds - self._rounds,
            record.accepted + accepted - self._accepted,
            record.correct + correct - self._correct,
        )
        self._rounds, self._accepted, self._correct = rounds, accepted, correct


def accepted(tokens: int, retractions: int) -> int:
    """Tokens that rounds gave, of all tokens of a request."""
    return max(tokens - 1 - retractions, 0)


def _of(batch: Any, name: str, at: int) -> int:
    values = getattr(batch, name, None)
    return int(values[at]) if values else 0
