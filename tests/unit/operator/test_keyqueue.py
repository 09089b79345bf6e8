"""The queue: each key once, one reconciler per key, later retries, and a stuck queue that shows."""

from __future__ import annotations

import asyncio

import pytest

from ling_operator import keyqueue
from ling_operator.keyqueue import KeyQueue

A, B = ("ns", "a"), ("ns", "b")


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keyqueue, "time", clock)
    return clock


async def empty(queue: KeyQueue) -> bool:
    try:
        async with asyncio.timeout(0.02):
            await queue.take()
    except TimeoutError:
        return True
    return False


async def test_a_key_that_is_put_often_is_taken_once() -> None:
    queue = KeyQueue()
    for _ in range(5):
        queue.put(A)
    assert await queue.take() == A
    assert queue.depth == 0
    queue.done(A)
    assert await empty(queue)


async def test_a_key_that_is_put_while_it_is_looked_at_comes_again_afterwards_only() -> None:
    queue = KeyQueue()
    queue.put(A)
    await queue.take()
    queue.put(A)
    assert await empty(queue), "nobody else may look at it now"
    queue.put(B)
    assert await queue.take() == B, "others need not wait for it"
    queue.done(A)
    assert await queue.take() == A


async def test_the_earliest_time_counts(clock: Clock) -> None:
    queue = KeyQueue()
    queue.put(A, 5)
    queue.put(A, 60)
    queue.put(B, 1)
    clock.now += 4.9
    assert await queue.take() == B
    queue.done(B)
    assert await empty(queue)
    clock.now += 0.2
    assert await queue.take() == A


async def test_a_waiting_reconciler_wakes_for_a_key_that_is_put() -> None:
    queue = KeyQueue()
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put(A)
    assert await asyncio.wait_for(taken, 30) == A


def test_retries_come_later_and_later_with_jitter_up_to_a_minute(clock: Clock) -> None:
    queue = KeyQueue()
    waits = [queue.retry(A) for _ in range(12)]
    for number, wait in enumerate(waits):
        longest = min(60.0, 0.25 * 2**number)
        assert longest / 2 <= wait <= longest
    queue.succeeded(A)
    assert queue.retry(A) <= 0.25


async def test_a_look_that_never_ends_shows(clock: Clock) -> None:
    queue = KeyQueue()
    assert queue.stuck_seconds() == 0.0
    queue.put(A)
    await queue.take()
    clock.now += 200
    assert queue.stuck_seconds() == 200.0
    queue.done(A)
    assert queue.stuck_seconds() == 0.0


def test_a_due_key_that_nobody_takes_shows_and_one_for_later_does_not(clock: Clock) -> None:
    queue = KeyQueue()
    queue.put(A, 500)
    queue.put(B)
    clock.now += 30
    assert queue.stuck_seconds() == 30.0


async def test_a_key_that_is_looked_at_and_put_again_delays_no_other() -> None:
    queue = KeyQueue()
    queue.put(A)
    assert await queue.take() == A  # and nobody answers for long
    queue.put(A)
    queue.put(B, after=0.05)
    async with asyncio.timeout(30):
        assert await queue.take() == B
    queue.done(A)
    async with asyncio.timeout(30):
        assert await queue.take() == A
