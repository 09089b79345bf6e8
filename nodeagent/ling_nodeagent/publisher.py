"""Writes LingSlot status: always the newest, never the same twice, never more often than it is worth (pace.py).

The agent calls `publish` and goes on; what cannot be written now is written when the API server is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from . import pace
from .away import ApiAway, ApiRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

LOG = logging.getLogger("ling.publisher")
FIRST_RETRY, LAST_RETRY = 0.1, 10.0  # seconds
AT_ONCE = 8  # writes in flight


@dataclass(slots=True, kw_only=True)
class Entry:
    """One slot's status: what it should be, what was written, and not before when to write again."""

    wanted: Mapping[str, Any]
    written: Mapping[str, Any] | None = None
    written_at: float = 0.0
    retry: float = 0.0  # seconds; 0 after a success
    not_before: float = 0.0
    writing: bool = False
    times: dict[str, tuple[str, str]] = field(default_factory=dict)


class Publisher:
    """`write(slot, status)` does one write; `times(slot)` are the condition times that the API server has."""

    def __init__(
        self,
        write: Callable[[str, dict[str, Any]], Awaitable[None]],
        times: Callable[[str], Mapping[str, tuple[str, str]]],
    ) -> None:
        self._write = write
        self._times = times
        self._entries: dict[str, Entry] = {}
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)

    def publish(self, slot: str, status: Mapping[str, Any]) -> None:
        """Have this written; returns at once."""
        entry = self._entries.get(slot)
        if entry is None:
            entry = self._entries[slot] = Entry(wanted=status)
        entry.wanted = status
        self._wake.set()

    def forget(self, slot: str) -> None:
        """The slot is not here any more."""
        self._entries.pop(slot, None)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                now, due = loop.time(), [loop.time() + 60.0]
                for slot, entry in self._entries.items():
                    wait = None if entry.writing else pace.delay(entry.written, entry.wanted)
                    if wait is None:
                        continue
                    at = max(entry.written_at + wait, entry.not_before)
                    if at <= now:
                        entry.writing = True
                        tasks.create_task(self._write_one(slot, entry))
                    else:
                        due.append(at)
                try:
                    async with asyncio.timeout_at(min(due)):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def _write_one(self, slot: str, entry: Entry) -> None:
        loop, wanted = asyncio.get_running_loop(), entry.wanted
        entry.times = entry.times or dict(self._times(slot))
        body = pace.stamped(wanted, entry.times, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        try:
            async with self._room:
                await self._write(slot, body)
        except (ApiAway, ApiRefused) as error:
            if isinstance(error, ApiRefused) and error.status == 404:
                entry.written = wanted  # the slot is gone: nobody to tell
                if entry.wanted is wanted and self._entries.get(slot) is entry:
                    self.forget(slot)
                return
            entry.retry = min(max(entry.retry * 2, FIRST_RETRY), LAST_RETRY)
            entry.not_before = loop.time() + entry.retry * random.uniform(0.5, 1.0)  # noqa: S311
            LOG.warning("event=status-not-written slot=%s reason=%r retry_s=%.1f", slot, str(error), entry.retry)
        else:
            entry.written, entry.written_at, entry.retry = wanted, loop.time(), 0.0
            entry.times = pace.times(body)
        finally:
            entry.writing = False
            self._wake.set()
