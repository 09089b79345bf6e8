"""How long a server may be silent."""

import time

import pytest

from ling_engine.metrics import ServerMetrics
from ling_engine.patience import patience
from ling_engine.requests import RequestRecord
from ling_engine.turns import Turns


@pytest.mark.parametrize(
    ("steps", "reading", "unread", "seconds"),
    [
        pytest.param([], [], 0, 5.0, id="nothing known"),
        pytest.param([0.001, 0.002, 0.003], [], 0, 5.0, id="quick steps"),
        pytest.param([0.2, 0.3, 9.0], [], 0, 15.0, id="slow steps: fifty of the median"),
        pytest.param([], [], 100_000, 105.0, id="a long prompt, never read one"),
        pytest.param([], [0.00001], 100_000, 105.0, id="quick at reading: no less than a millisecond a byte"),
        pytest.param([], [0.01], 1000, 105.0, id="slow at reading: ten times as long as usual"),
    ],
)
def test_patience(steps: list[float], reading: list[float], unread: int, seconds: float) -> None:
    assert patience(steps=steps, reading=reading, unread=unread) == pytest.approx(seconds)


def test_a_prompt_counts_until_its_first_token() -> None:
    metrics = ServerMetrics()
    record = RequestRecord(prompt_bytes=50_000)
    assert metrics.performance()["patience_ms"] == 5000
    metrics.began(record)
    assert metrics.performance()["patience_ms"] == 55_000
    record.token()
    assert metrics.performance()["patience_ms"] == 5000
    metrics.ended(record)
    assert metrics.performance()["in_flight"] == 0


def finished(metrics: ServerMetrics, prompt: int, *, tokens: int = 1) -> None:
    record = RequestRecord(prompt_bytes=prompt)
    metrics.began(record)
    if tokens:
        record.token(tokens)
    metrics.ended(record)


def test_a_compiler_is_waited_for_until_enough_requests_gave_a_token() -> None:
    metrics = ServerMetrics()
    metrics.first_patience = 60.0
    for _ in range(100):
        finished(metrics, 10, tokens=0)
    assert metrics.performance()["patience_ms"] == 60_000, "refused requests have compiled nothing"
    for _ in range(16):
        finished(metrics, 10)
    assert metrics.performance()["patience_ms"] == 5000


def test_a_compiler_is_waited_for_while_a_prompt_is_longer_than_any_before() -> None:
    metrics = ServerMetrics()
    metrics.first_patience = 60.0
    for _ in range(16):
        finished(metrics, 100)
    known, longer = RequestRecord(prompt_bytes=100), RequestRecord(prompt_bytes=101)
    metrics.began(known)
    assert metrics.performance()["patience_ms"] == 5100
    metrics.began(longer)
    assert metrics.performance()["patience_ms"] == 60_000
    longer.token()
    assert metrics.performance()["patience_ms"] == 5100
    metrics.ended(longer)
    metrics.began(RequestRecord(prompt_bytes=101))
    assert metrics.performance()["patience_ms"] == 5201


def test_a_slow_client_makes_nobody_slow_at_reading() -> None:
    now = time.monotonic()
    record = RequestRecord(began=now - 1000, whole=now, prompt_bytes=1000)
    record.token()
    assert record.ttft == pytest.approx(1000, abs=1)
    assert record.reading == pytest.approx(0, abs=1)


def test_who_yields_works_a_twentieth_of_the_time() -> None:
    turns = Turns()
    assert turns.rest(1.0) == 0
    turns.busy = True
    assert turns.rest(1.0) == pytest.approx(19.0)
