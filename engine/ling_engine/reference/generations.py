"""The queue before the one sequence: one thread computes, first come first served.

The event loop submits a request and reads its tokens as they come. Cancelling one takes effect before its next step; in
the queue it costs nothing any more.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from ling_engine.reference.generate import greedy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from collections.abc import Sequence as Ids

    from ling_engine.reference.model import Ling
    from ling_engine.reference.sequence import Sequence


class Overloaded(Exception):
    """More requests wait than the engine was told to keep. The application answers 429."""


class Generation:
    """One request's tokens. Made by `Generations.submit`; used in the event loop."""

    def __init__(self) -> None:
        self.cancelled = False
        self._tokens: asyncio.Queue[int | Exception | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        """No further token is wanted; whoever reads them sees the end."""
        self.cancelled = True
        self._tokens.put_nowait(None)

    async def tokens(self) -> AsyncIterator[int]:
        """Ids as they are computed; ends early when cancelled. Raises what the computation raised."""
        while (token := await self._tokens.get()) is not None:
            if isinstance(token, Exception):
                raise token
            yield token

    def emit(self, token: int | Exception | None) -> None:
        """Called by the computing thread; None = the end."""
        self._loop.call_soon_threadsafe(self._tokens.put_nowait, token)


class Generations:
    """The queue before the one sequence."""

    def __init__(self, model: Ling, sequence: Sequence, max_queue: int) -> None:
        self._model, self._sequence, self._max_queue = model, sequence, max_queue
        self._waiting: set[Generation] = set()
        self._thread = ThreadPoolExecutor(1, "generate")

    def submit(self, prompt: Ids[int], limit: int, eos: int | None) -> Generation:
        """Puts a request in the queue. Raises Overloaded. Call it in the event loop."""
        if sum(not waiting.cancelled for waiting in tuple(self._waiting)) >= self._max_queue:
            raise Overloaded
        generation = Generation()
        self._waiting.add(generation)
        self._thread.submit(self._run, generation, prompt, limit, eos)
        return generation

    def now(self, prompt: Ids[int], limit: int) -> list[int]:
        """The ids at once, without an event loop, computed by the same thread."""
        return self._thread.submit(self._compute, prompt, limit).result()

    @torch.inference_mode()
    def _compute(self, prompt: Ids[int], limit: int) -> list[int]:
        return list(greedy(self._model, self._sequence, prompt, limit, None, lambda: True))

    @torch.inference_mode()
    def _run(self, generation: Generation, prompt: Ids[int], limit: int, eos: int | None) -> None:
        self._waiting.discard(generation)
        try:
            for token in greedy(self._model, self._sequence, prompt, limit, eos, lambda: not generation.cancelled):
                generation.emit(token)
        except Exception as error:  # whatever it is, the one who waits for the tokens must learn of it
            generation.emit(error)
        else:
            generation.emit(None)
