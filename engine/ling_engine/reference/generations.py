"""The queue before the one sequence: one thread computes, first come first served.

The event loop submits a request and reads its tokens as they come. Cancelling one takes effect before its next step; in
the queue it costs nothing any more.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Sequence as Ids

    from ling_engine.reference.bounds import Bounds
    from ling_engine.reference.generate import Decoder
    from ling_engine.reference.speculate import Round


class Overloaded(Exception):
    """More requests wait than the engine was told to keep. The application answers 429."""


@dataclass(slots=True)
class Counts:
    """Of the rounds whose tokens were read. A round counts when its first token is; prefill's token is in none."""

    rounds: int = 0  # drafts were verified
    accepted: int = 0  # tokens that those rounds gave
    correct: int = 0  # drafts that the target agreed with


class Generation:
    """One request's tokens. Made by `Generations.submit`; used in the event loop."""

    def __init__(self) -> None:
        self.cancelled = False
        self.counts = Counts()
        self._rounds: asyncio.Queue[Round | Exception | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """No further token is wanted; whoever reads them sees the end."""
        self.cancelled = True
        self._rounds.put_nowait(None)

    async def tokens(self) -> AsyncIterator[int]:
        """Ids as they are computed; ends early when cancelled. Raises what the computation raised."""
        while (found := await self._rounds.get()) is not None:
            if isinstance(found, Exception):
                raise found
            if found.correct is not None:
                self.counts.rounds += 1
                self.counts.correct += found.correct
            for token in found.tokens:
                self.counts.accepted += found.correct is not None
                yield token

    def emit(self, found: Round | Exception | None) -> None:
        """Called by the computing thread; None = the end."""
        self._loop.call_soon_threadsafe(self._rounds.put_nowait, found)


class Generations:
    """The queue before the one sequence."""

    def __init__(self, decoder: Decoder, max_queue: int) -> None:
        self._decoder, self._max_queue = decoder, max_queue
        self._waiting: set[Generation] = set()
        self._thread = ThreadPoolExecutor(1, "generate")

    def submit(self, prompt: Ids[int], bounds: Bounds) -> Generation:
        """Puts a request in the queue. Raises Overloaded. Call it in the event loop."""
        if sum(not waiting.cancelled for waiting in tuple(self._waiting)) >= self._max_queue:
            raise Overloaded
        generation = Generation()
        self._waiting.add(generation)
        self._thread.submit(self._run, generation, prompt, bounds)
        return generation

    def now(self, prompt: Ids[int], bounds: Bounds) -> list[int]:
        """The ids at once, without an event loop, computed by the same thread."""
        return self._thread.submit(self._compute, prompt, bounds).result()

    @torch.inference_mode()
    def _compute(self, prompt: Ids[int], bounds: Bounds) -> list[int]:
        found = self._decoder.generate(prompt, bounds, lambda: True)
        return [token for one in found for token in one.tokens]

    @torch.inference_mode()
    def _run(self, generation: Generation, prompt: Ids[int], bounds: Bounds) -> None:
        self._waiting.discard(generation)
        try:
            for found in self._decoder.generate(prompt, bounds, lambda: not generation.cancelled):
                generation.emit(found)
        except Exception as error:  # whatever it is, the one who waits for the tokens must learn of it
            generation.emit(error)
        else:
            generation.emit(None)
