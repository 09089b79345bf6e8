"""SGLang's tokenizer manager with our counts: every token of every request when it comes, streamed or not.

The figures are SGLang's own: `completion_tokens`, `spec_verify_ct` (rounds in which the target verified drafts) and
`spec_num_correct_drafts` of each output batch. A round gives its correct drafts and one token of the target; the first
token of a request, and the first after each retraction, come from a prefill and from no round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sglang.srt.managers.io_struct import BatchStrOutput, BatchTokenIDOutput, unwrap_from_pickle
from sglang.srt.managers.tokenizer_manager import TokenizerManager, print_exception_wrapper

from ling_engine import requests

if TYPE_CHECKING:
    from ling_engine.requests import RequestRecord


class CountingTokenizerManager(TokenizerManager):  # type: ignore[misc]
    """Ends with its process: signals and the drain are the server's."""

    event_loop: asyncio.AbstractEventLoop | None

    def auto_create_handle_loop(self) -> None:
        if self.event_loop is None:
            loop = self.event_loop = asyncio.get_running_loop()
            self.asyncio_tasks.add(loop.create_task(print_exception_wrapper(self.handle_loop)))

    def _init_req_state(self, obj: Any, request: Any = None) -> None:
        super()._init_req_state(obj, request)
        record = requests.current()
        for rid in [obj.rid] if getattr(obj, "is_single", True) else obj.rid:
            state = self.rid_to_state[rid]
            state.ling = Count(record, streamed=bool(getattr(state.obj, "stream", False)))

    async def _handle_batch_output(self, recv_obj: Any) -> None:
        if isinstance(recv_obj, BatchStrOutput | BatchTokenIDOutput):
            times = unwrap_from_pickle(recv_obj.time_stats)
            for at, rid in enumerate(recv_obj.rids):
                count = getattr(self.rid_to_state.get(rid), "ling", None)
                if count is not None:
                    count.output(recv_obj, at, times[at] if times else None)
        await super()._handle_batch_output(recv_obj)


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
