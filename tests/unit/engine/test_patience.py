"""How long a server may be silent."""

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


def test_who_yields_works_a_twentieth_of_the_time() -> None:
    turns = Turns()
    assert turns.rest(1.0) == 0
    turns.busy = True
    assert turns.rest(1.0) == pytest.approx(19.0)
