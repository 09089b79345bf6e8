"""A rank's side of the desk: a thread that keeps the rank's own link to the agent, while the scheduler computes.

The scheduler's thread asks for one role at a time and waits. What touches the model or the device is handed back to it
and runs there; the thread itself only moves descriptors and never touches a device.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from ling_api import fdpass
from ling_api.errors import LingError, Refused
from ling_api.identity import FieldDifference
from ling_engine import attach
from ling_engine.channel import Channel
from ling_engine.cohort import Answer, Cohort
from ling_engine.rank import RankLink

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ling_api.identity import Identity
    from ling_api.memory.base import RankMemory
    from ling_engine.cohort import Attached
    from ling_engine.runtime import WeightTwin

    from .seat import Seat

_log = logging.getLogger(__name__)
_PATIENCE_S = 10.0  # for the thread to begin; and for last words to leave
_PROGRESS_S = 0.2
_BROKEN = 1  # exit code of a rank whose link failed unexpectedly


class CallerThread:
    """A model thread (see ling_engine.model_thread) that is the caller's own: what is handed over runs in `serve`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def run[**P, R](self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[R] = loop.create_future()

        def job() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # it belongs to who waits
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_finish, done, result)

        self._jobs.put(job)
        return await done

    def serve(self) -> None:
        """In the caller's thread, until `end`."""
        while (job := self._jobs.get()) is not None:
            job()

    def end(self) -> None:
        self._jobs.put(None)


class RankSide:
    """One of a process, from its first weight set to its end."""

    def __init__(self, seat: Seat, rank: int) -> None:
        self._seat = seat
        self._rank = rank
        self._sock = seat.desk.place(rank)
        self._attached: dict[str, Attached] = {}
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._asked: set[str] = set()
        self._asks = 0
        self._ending = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        threading.Thread(target=self._run, name="ling-rank", daemon=True).start()
        if not self._started.wait(_PATIENCE_S):
            raise LingError(f"rank {rank}: its link to the agent did not begin within {_PATIENCE_S:.0f} s")

    def attach(self, role: str, twin: WeightTwin, identity: Identity, memory: RankMemory) -> Attached:
        """Blocks until the set is in this process. Raises the errors of ling_api.errors; the desk is told of them."""
        thread = CallerThread()
        future = asyncio.run_coroutine_threadsafe(self._attach(role, twin, identity, memory, thread), self._loop)
        future.add_done_callback(lambda _: thread.end())
        thread.serve()
        return future.result()

    def failed(self, code: int, reason: str) -> None:
        """Last words: the server ends with this exit code. Returns when they are said, or cannot be."""

        async def say() -> None:
            self._channel.put({"op": "failed", "code": code, "reason": reason[:4000]})

        try:
            asyncio.run_coroutine_threadsafe(say(), self._loop).result(_PATIENCE_S)
        except TimeoutError:
            _log.error("rank=%d failed=%d reason=%r desk=silent", self._rank, code, reason)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception:
            _log.exception("rank=%d link=ended", self._rank)
            logging.shutdown()
            os._exit(_BROKEN)  # who waits for a set would wait for ever; the death of a rank is its server's

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = Channel(self._sock, self._frame, lambda: _log.warning("rank=%d desk=gone", self._rank))
        self._channel.put({"op": "hello", "pid": os.getpid(), "rank": self._rank})
        self._link = RankLink(
            self._seat.run_dir,
            self._seat.server,
            self._rank,
            on_listener=lambda fd, _: fdpass.close_all([fd]),  # connections are the main process's trade
            on_adopt=fdpass.close_all,
            on_welcome=lambda: attach.say_mapped(self._link, self._attached),
        )
        self._started.set()
        await self._link.run()

    async def _attach(
        self, role: str, twin: WeightTwin, identity: Identity, memory: RankMemory, thread: CallerThread
    ) -> Attached:
        name = attach.named(twin, identity)
        clock = _Clock(self._channel, role)
        cohort = Cohort(
            link=self._link,
            memory=memory,
            thread=thread,
            ask=lambda sets: self._ask(role, sets[0]),
            tell=clock.tell,
            progress=lambda value: self._progress(clock, value),
            revision=self._seat.revision,
        )
        attached = (await attach.attach(cohort, {name: (twin, identity)}))[name]
        self._attached[name] = attached
        steps = " ".join(f"{step}={value:.1f}" for step, value in clock.milliseconds.items())
        _log.info("rank=%d role=%s filled=%s ms: %s", self._rank, role, attached.filled, steps)
        self._channel.put(
            {
                "op": "attached",
                "role": role,
                "set": name,
                "nbytes": attached.manifest.nbytes,
                "filled": attached.filled,
                "milliseconds": clock.milliseconds,
            }
        )
        self._start(self._check_rest(attached))
        return attached

    async def _check_rest(self, attached: Attached) -> None:
        """What was not looked at before serving; of a device's memory nothing is left to look at."""
        try:
            await asyncio.to_thread(attach.check_rest, attached, self._ending)
        except LingError as error:
            self._channel.put({"op": "failed", "code": error.exit_code, "reason": str(error)})

    async def _ask(self, role: str, name: str) -> Answer:
        self._asks += 1
        number, again = self._asks, name in self._asked
        self._asked.add(name)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        self._channel.put({"op": "ask", "re": number, "role": role, "set": name, "again": again})
        answer: Answer = await future
        return answer

    def _frame(self, message: dict[str, Any], fds: list[int]) -> None:
        fdpass.close_all(fds)
        future = self._answers.pop(message["re"], None)
        if future is None or future.done():
            return
        if message["op"] == "refused":
            fields = tuple(FieldDifference(*one) for one in message["fields"])
            future.set_exception(Refused(message["reason"], fields))
            return
        future.set_result(Answer(granted=message["granted"], tickets=message["tickets"]))

    def _progress(self, clock: _Clock, value: float) -> None:
        """From any thread."""
        if value < 1.0 and time.monotonic() - clock.progressed < _PROGRESS_S:
            return
        clock.progressed = time.monotonic()
        self._loop.call_soon_threadsafe(self._channel.put, {"op": "progress", "value": value})

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Clock:
    """Milliseconds of one role's steps, from its first ask on."""

    def __init__(self, channel: Channel, role: str) -> None:
        self._channel = channel
        self._role = role
        self._began = time.monotonic()
        self.milliseconds: dict[str, float] = {}
        self.progressed = 0.0

    def tell(self, step: str) -> None:
        self.milliseconds[step] = (time.monotonic() - self._began) * 1000
        self._channel.put({"op": "step", "role": self._role, "step": step})


def _finish[R](future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _fail[R](future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
