"""A queue of keys: each at most once, one reconciler per key, retries later with jitter.

A key that is put while it is being looked at is looked at once more afterwards. Nothing is lost when the process ends:
every start begins with a full listing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from typing import Final

type Key = tuple[str, str]  # namespace, name

FIRST_RETRY: Final = 0.25  # seconds
LAST_RETRY: Final = 60.0


class KeyQueue:
    """Keys by the time at which they are due."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._running: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def put(self, key: Key, after: float = 0.0) -> None:
        """Look at the key in `after` seconds, or earlier if it is due earlier already."""
        due = time.monotonic() + after
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            if key not in self._running:
                self._push(key)

    def retry(self, key: Key) -> float:
        """Put a key that failed, each time later, up to a minute; the seconds that it waits."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = min(LAST_RETRY, FIRST_RETRY * float(1 << min(failures - 1, 10)))
        after = longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, protects nothing
        self.put(key, after)
        return after

    def succeeded(self, key: Key) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def _push(self, key: Key) -> None:
        heapq.heappush(self._heap, (self._due[key], next(self._order), key))
        self._changed.set()

    def _next(self, now: float) -> tuple[Key | None, float | None]:
        """A key that is due and that nobody looks at, else the seconds until there may be one."""
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) != due or key in self._running:
                heapq.heappop(self._heap)  # put earlier meanwhile; or being looked at: `done` puts it back
            elif due > now:
                return None, due - now
            else:
                heapq.heappop(self._heap)
                return key, 0.0
        return None, None

    async def take(self) -> Key:
        """The next key that is due; `done` must follow."""
        while True:
            now = time.monotonic()
            key, wait = self._next(now)
            if key is not None:
                del self._due[key]
                self._running[key] = now
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(wait if wait is None else wait + 0.001):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """The key may be taken again."""
        del self._running[key]
        if key in self._due:
            self._push(key)

    @property
    def depth(self) -> int:
        """Keys that wait, due or not."""
        return len(self._due)

    def stuck_seconds(self) -> float:
        """How long the oldest look has been going on, or a due key has been waiting; 0 when nothing does."""
        now = time.monotonic()
        running = (now - since for since in self._running.values())
        overdue = (now - due for due in self._due.values() if due <= now)
        return max(0.0, *running, *overdue, 0.0)
