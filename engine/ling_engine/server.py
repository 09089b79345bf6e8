"""The server: a fork of the zygote that attaches the weights, warms up, and accepts while it is active.

Its life in order: attach, warm up, wait for the role `active`, accept, until `draining`; then it ends with 0. It obeys
its launcher (control socket) and passes connections at the agent's folder socket; the weights are its body's concern.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from ling_api import fdpass
from ling_api.errors import DeviceError, Refused
from ling_api.identity import FieldDifference

from .body import Body, Hosting
from .channel import Channel
from .cohort import Answer
from .inprocess import InProcess
from .metrics import ServerMetrics
from .middleware import Middleware
from .model_thread import ModelThread
from .rank import Declined, LinkLost, RankLink
from .serving import SlotServer
from .turns import Turns

if TYPE_CHECKING:
    import socket
    from collections.abc import Coroutine

    from .runtime import Runtime
    from .settings import EngineSettings

_log = logging.getLogger(__name__)
_REPORT_S = 0.2  # how often changed figures and progress are told
_LAUNCHER_GONE = 1


async def serve(control: socket.socket, settings: EngineSettings, runtime: Runtime, server_id: str) -> int:
    """The exit code 0 after a drain (or a fill); raises the errors of ling_api.errors."""
    server = Server(control, settings, runtime, server_id)
    # Threads of the model may still run when an error ends this: the child leaves by os._exit.
    return await server.run()


class Server:
    """Owns the body, the folder connection and the HTTP server. It is the body's Room."""

    def __init__(self, control: socket.socket, settings: EngineSettings, runtime: Runtime, server_id: str) -> None:
        self.settings = settings
        self.server_id = server_id
        self._began = time.monotonic()
        self._phase = "started"
        self._phases: dict[str, float] = {}
        self._progress = 0.0
        self._requests = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._active = asyncio.Event()
        self._draining: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.metrics = ServerMetrics()
        self.metrics.proof_every = settings.proof_seconds
        self.turns = Turns()
        self.thread = ModelThread()
        self._http: SlotServer | None = None
        self._listener: tuple[int, int] | None = None  # fd and backlog, not yet accepted on
        self._listener_there = asyncio.Event()
        self._early: list[int] = []  # connections that came before there was an HTTP server
        self._tasks: set[asyncio.Task[None]] = set()
        self._control = Channel(control, self._from_launcher, lambda: os._exit(_LAUNCHER_GONE))
        hosting = runtime if isinstance(runtime, Hosting) else None
        self.link = RankLink(
            settings.run_dir,
            server_id,
            settings.tp if hosting else 0,  # beside the ranks that have links of their own
            on_listener=lambda fd, backlog: self.start(self._have_listener(fd, backlog)),
            on_adopt=self._adopt,
            on_welcome=self._welcomed,
            on_promote=self._active.set,  # the launcher says so too, a little later
        )
        self._body: Body = hosting.body(self) if hosting else InProcess(runtime, self)

    async def run(self) -> int:
        """Ends with the first of: a drain, or the failure of anything that runs beside it."""
        self.start(self.link.run())
        self.metrics.on_first_token = self._say_performance
        self.start(self._report())
        self.start(self._live())
        try:
            return await self._over
        finally:
            self._body.close()

    async def _live(self) -> None:
        await self._attach_and_serve()
        if not self._over.done():
            self._over.set_result(0)

    async def _attach_and_serve(self) -> None:
        body = self._body
        await body.attach()
        self._enter("attached")
        if self.settings.command == "fill":
            return
        await body.warm_up()
        app = Middleware(body.app(), self.metrics, paths=body.paths, more_metrics=body.metrics, limit=body.limit)
        http = SlotServer(app, self.metrics)
        await http.start()
        await http.adopt(self._early)
        self._http = http
        self._enter("warm")
        self._say_performance()
        self.start(self._prove())
        await self._until(self._active.wait())
        if not self._draining.done():
            body.promoted()
        await self._until(self._listener_there.wait())
        if not self._draining.done():
            await self._accept(http)
            self._enter("accepting")
        grace = await self._draining
        self._enter("draining")
        await http.drain(grace, self._pass)
        _log.info("server=drained requests=%d failed=%d", self.metrics.requests, self.metrics.failed)

    async def _until(self, condition: Coroutine[Any, Any, Any]) -> None:
        """Waits for it, or for the word to drain."""
        waiting: asyncio.Future[Any] = asyncio.ensure_future(condition)
        await asyncio.wait([waiting, self._draining], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def _prove(self) -> None:
        """While it is parked: a token now and then, so that who is promoted is known to work."""
        patience = self.settings.proof_seconds
        while True:
            waiting: asyncio.Future[Any] = asyncio.ensure_future(self._active.wait())
            await asyncio.wait([waiting, self._draining], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._active.is_set() or self._draining.done():
                return
            try:
                async with asyncio.timeout(patience):
                    await self._body.prove()
            except TimeoutError:
                raise DeviceError(f"the proof of a parked server took longer than {patience:g} s") from None
            self.metrics.proofs += 1

    async def _accept(self, http: SlotServer) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await http.accept(*listener)

    async def ask(self, sets: list[str]) -> Answer:
        """The agent's final answer, by way of the launcher. Raises Refused."""
        self._requests += 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[self._requests] = future
        self._control.put({"op": "attach", "re": self._requests, "sets": sets})
        return await future

    async def _ask_listener(self) -> None:
        """Asks this agent for the slot's listener until it has one; the next agent is asked anew."""
        number = self.link.welcomes
        while self.link.connected and self.link.welcomes == number:
            try:
                ((message, fds),) = await self.link.request(({"op": "listener"}, ()))
            except (LinkLost, Declined) as error:
                _log.debug("listener=wait reason=%r", str(error))
                await asyncio.sleep(0.1)
                continue
            await self._have_listener(fds[0], message["backlog"])
            return

    def _welcomed(self) -> None:
        """An agent is met; it may be a new one, and the slot pod may be another."""
        self._body.say_mapped()
        if self.settings.command != "fill":
            self.start(self._ask_listener())

    async def _have_listener(self, fd: int, backlog: int) -> None:
        if self._listener is not None:
            fdpass.close_all([self._listener[0]])
        self._listener = (fd, backlog)
        self._listener_there.set()
        if self._http is not None and self._http.accepting and not self._draining.done():
            await self._accept(self._http)

    def _adopt(self, fds: list[int]) -> None:
        if self._http is None:
            self._early.extend(fds)
        else:
            self.start(self._http.adopt(fds))

    def _pass(self, fds: list[int]) -> bool:
        return self.link.put({"op": "pass", "count": len(fds)}, fds)

    # the launcher

    def _from_launcher(self, message: dict[str, Any], fds: list[int]) -> None:
        match message["op"]:
            case "answer":
                self._answered(message)
            case "role" if message["role"] == "active":
                self._active.set()
            case "role" if not self._draining.done():
                self._draining.set_result(message["grace"])
            case "turn":
                self.turns.busy = message["busy"]
            case "parked":
                self._adopt(fds)
            case "metrics":
                self._control.put({"op": "metrics", "re": message["re"], "text": self.metrics.text()})

    def _answered(self, message: dict[str, Any]) -> None:
        if message["kind"] == "wait":
            self._step("waiting")
            self.progress(message["progress"])
            return
        future = self._answers.pop(message["re"], None)
        if future is None or future.done():
            return
        if message["kind"] == "refused":
            fields = tuple(FieldDifference(*one) for one in message["fields"])
            named = "".join(f"; {one.field} is {one.held}, wanted {one.wanted}" for one in fields)
            future.set_exception(Refused(f"{message['reason']}{named}", fields))
        else:
            future.set_result(Answer(granted=message["granted"], tickets=message["tickets"]))

    def tell(self, step: str) -> None:
        """Of the body: `filling` is a phase of its own, all others are times."""
        if step == "filling":
            self._enter(step)
        else:
            self._step(step)

    def _step(self, step: str) -> None:
        self._phases[step] = (time.monotonic() - self._began) * 1000

    def _enter(self, phase: str) -> None:
        self._step(phase)
        self._phase = phase
        self._say_phase()

    def _say_phase(self) -> None:
        frame = {"op": "phase", "phase": self._phase, "phases": self._phases, "progress": self._progress}
        self._control.put(frame)

    def progress(self, value: float) -> None:
        """0..1 of a fill, from any thread; _report tells it."""
        self._progress = value

    async def _report(self) -> None:
        performance, progress = self.metrics.performance(), self._progress
        while True:
            await asyncio.sleep(_REPORT_S)
            if self._progress != progress:
                progress = self._progress
                self._say_phase()
            if self.metrics.performance() != performance:
                performance = self.metrics.performance()
                self._say_performance()

    def _say_performance(self) -> None:
        self._control.put({"op": "performance", **self.metrics.performance()})

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it beside the rest; its failure is the server's."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)
