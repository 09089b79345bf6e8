"""The server's Prometheus metrics and the few figures that the agent is told."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from .requests import RequestRecord

# A speculative decoder on good hardware emits a token every 0.2 to 5 ms; a CPU takes longer.
TPOT_BUCKETS = (0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.01, 0.02, 0.05, 0.2, 1.0)
TTFT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_FIRST = 16  # requests that gave a token
_WINDOW = 256  # requests behind the means that the agent is told


class ServerMetrics:
    """One registry per server process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._in_flight = Gauge("ling_requests_in_flight", "Generations being answered.", registry=registry)
        self._requests = Counter("ling_requests", "Answered requests.", ["path", "status"], registry=registry)
        self._failed = Counter("ling_requests_failed", "Failed generations.", ["reason"], registry=registry)
        self._tokens = Counter("ling_output_tokens", "Tokens emitted.", registry=registry)
        self._rounds = Counter("ling_verify_rounds", "Steps of the target that verified drafts.", registry=registry)
        self._accepted = Counter(
            "ling_accepted_tokens", "Tokens that verify rounds gave; by round: the accept length.", registry=registry
        )
        self._correct = Counter("ling_correct_drafts", "Drafts that the target agreed with.", registry=registry)
        self._ttft = Histogram(
            "ling_time_to_first_token_seconds", "From request to first token.", buckets=TTFT_BUCKETS, registry=registry
        )
        self._tpot = Histogram(
            "ling_time_per_output_token_seconds", "Mean of each request.", buckets=TPOT_BUCKETS, registry=registry
        )
        self._connections = Counter(
            "ling_connections_moved", "Idle connections by direction.", ["direction"], registry=registry
        )
        self._recent_ttft: deque[float] = deque(maxlen=_WINDOW)
        self._recent_tpot: deque[float] = deque(maxlen=_WINDOW)
        self._recent_ends: deque[float] = deque(maxlen=_WINDOW)  # when the last token of each was there
        self._recent_rounds: deque[tuple[int, int]] = deque(maxlen=_WINDOW)  # tokens, rounds that gave them
        self.draft_tokens = 0  # rows that the target verifies a round; 0 = no speculation, or not known
        self.in_flight = 0
        self.requests = 0
        self.output_tokens = 0
        self.failed = 0
        self.arrivals = 0  # connections that were accepted here and on which a generation was asked for
        self.proofs = 0  # of a parked server
        self.proof_every = 0.0  # seconds
        self._running: dict[int, RequestRecord] = {}
        self.least_patience = 0.0  # seconds; of an engine that is slower than any GPU
        self.first_patience = 0.0  # seconds; of what is new to the server and may have to wait for a compiler
        self._generated = 0  # requests that gave a token
        self._longest = 0  # prompt bytes of those
        self._recent_reading: deque[float] = deque(maxlen=_WINDOW)  # seconds per byte of a prompt
        self.on_first_token: Callable[[], None] = lambda: None  # the server's very first: it is no crash-looper

    def began(self, record: RequestRecord | None = None) -> None:
        """A generation began; by its record is known how much of its prompt is unread."""
        self.in_flight += 1
        if record is not None:
            self._running[id(record)] = record
        self._in_flight.set(self.in_flight)

    def emitted(self, count: int) -> None:
        """Tokens of a running request."""
        first = not self.output_tokens
        self.output_tokens += count
        self._tokens.inc(count)
        if first:
            self.on_first_token()

    def ended(self, record: RequestRecord) -> None:
        """A generation ended, well or not."""
        self.in_flight -= 1
        self._running.pop(id(record), None)
        self.requests += 1
        self._in_flight.set(self.in_flight)
        self._rounds.inc(record.rounds)
        self._accepted.inc(record.accepted)
        self._correct.inc(record.correct)
        if record.rounds:
            self._recent_rounds.append((record.accepted, record.rounds))
        if record.ttft is not None and record.reading is not None:
            self._generated += 1
            self._longest = max(self._longest, record.prompt_bytes)
            self._ttft.observe(record.ttft)
            self._recent_ttft.append(record.ttft)
            self._recent_ends.append(record.last)
            if record.prompt_bytes:
                self._recent_reading.append(record.reading / record.prompt_bytes)
        if record.tpot is not None:
            self._tpot.observe(record.tpot)
            self._recent_tpot.append(record.tpot)

    def answered(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def fail(self, reason: str) -> None:
        self.failed += 1
        self._failed.labels(reason).inc()

    def moved(self, direction: str, count: int) -> None:
        """`passed` to a successor or `adopted` from a predecessor."""
        self._connections.labels(direction).inc(count)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def performance(self) -> dict[str, float]:
        """The fields of the stream's Performance."""
        return {
            "in_flight": self.in_flight,
            "requests": self.requests,
            "output_tokens": self.output_tokens,
            "mean_tpot_ms": _mean(self._recent_tpot) * 1000,
            "mean_ttft_ms": _mean(self._recent_ttft) * 1000,
            "failed": self.failed,
            "mean_accept_length": self._accept_length(),
            "patience_ms": round(self._patience() * 1000),
            "proofs": self.proofs,
            "proof_every_ms": round(self.proof_every * 1000),
            "arrivals": self.arrivals,
            "draft_tokens": self.draft_tokens,
            "samples": len(self._recent_ends),
            "window_seconds": round(max(self._recent_ends) - min(self._recent_ends), 3) if self._recent_ends else 0.0,
        }

    def _patience(self) -> float:
        """Seconds; 0 while all that is in flight waits for its clients: that silence is not the engine's."""
        running = [each for each in self._running.values() if not each.client]
        if self._running and not running:
            return 0.0
        unread = [each.prompt_bytes for each in running if not each.tokens]
        length = max(1.0, self._accept_length())
        new = self._generated < _FIRST or max(unread, default=0) > self._longest
        floor = max(self.least_patience, self.first_patience if new else 0.0)
        found = patience(
            steps=[each * length for each in self._recent_tpot], reading=self._recent_reading, unread=sum(unread)
        )
        return max(found, floor)

    def _accept_length(self) -> float:
        """All tokens by all rounds: a short answer counts less than a long one."""
        rounds = sum(rounds for _, rounds in self._recent_rounds)
        return sum(tokens for tokens, _ in self._recent_rounds) / rounds if rounds else 0.0


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0
