"""The launcher, PID 1 of an engine pod: connects children, agent and signals to the table in lifecycle.py.

It stays small and never imports a runtime: the zygote does. While the agent is away a server goes on serving.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api import fdpass, names
from ling_api.errors import AgentUnreachable, BadInput, CheckpointChanged
from ling_api.v1 import agent_pb2 as pb

from . import described, launcher_metrics
from .backups import Backups
from .described import Needs
from .jit_exchange import JitExchange
from .launched import LaunchedServer
from .lifecycle import Action, Event, Phase, State, decide
from .parked import Parked
from .probes import Probes
from .processes import Processes
from .stream import AgentLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .settings import EngineSettings

_log = logging.getLogger(__name__)
_LEAVE_PATIENCE_S = 3.0  # for the agent's answer to Leaving
_DRAIN_MARGIN_S = 5.0  # beyond the grace period, before a draining server is killed
_FILL_PATIENCE_S = 30.0  # `fill` gives up when it never meets an agent; `run` waits for ever
_ROLES = {
    Phase.WARM: pb.ROLE_WARM,
    Phase.ACTIVE: pb.ROLE_ACTIVE,
    Phase.LEAVING: pb.ROLE_ACTIVE,
    Phase.DRAINING: pb.ROLE_DRAINING,
}
_TOLD = {pb.ROLE_ACTIVE: Event.TOLD_ACTIVE, pb.ROLE_DRAINING: Event.TOLD_DRAINING}
_HEARD = {"warm": Event.SERVER_WARM, "accepting": Event.SERVER_ACCEPTING}


async def launch(settings: EngineSettings) -> int:
    """Runs until told to end; returns the exit code. Raises AgentUnreachable."""
    if not settings.run_dir.is_dir():
        raise AgentUnreachable(f"--run-dir {settings.run_dir}: no such folder; the node agent mounts it into the pod")
    fdpass.allow_many()  # the server has one for each client, parked ones are here
    launcher = Launcher(settings)
    try:
        return await launcher.run()
    finally:
        launcher.close()


class Launcher:
    """Owns the children, the agent's line, the back-ups and the parked connections."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[int] = self._loop.create_future()
        self._state = State(once=settings.command == "fill")
        self._term = 0
        self._held_back = ""  # why the pod is not to be Ready, whatever it does
        self._left_at = 0.0  # when SIGTERM came
        self._grace = settings.grace_seconds
        self._needs = Needs()
        self._server: LaunchedServer | None = None
        self._parked = Parked(self._place)
        self._metrics = launcher_metrics.LauncherMetrics()
        self._backups = Backups()
        self._jit = JitExchange(Path(os.environ.get(names.ENV_CACHE_DIR, names.CACHE_DIR)))
        self._processes = Processes(
            settings,
            failed=lambda code: self._post(Event.CHECK_FAILED, code or 1),
            kernels=lambda key: self._jit.ahead(key, settings.run_dir),
        )
        self._line = AgentLine(
            settings.run_dir,
            self._backups,
            hello=self._hello,
            on_message=self._from_agent,
            on_parked=self._parked.keep,
            jit=self._jit,
        )
        self._joined: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._probes = Probes({"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics_text})

    async def run(self) -> int:
        """The exit code, when the table says EXIT. Raises BadInput for a port that cannot be had."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._post, Event.SIGTERM)
        try:
            port = await self._probes.start(self._settings.probe_port)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise BadInput(f"--probe-port {self._settings.probe_port}: cannot listen there: {reason}") from error
        _log.info("launcher=started command=%s probes=%d", self._settings.command, port)
        self._processes.start()
        described.ask(self._processes, self._described, lambda code: self._post(Event.CHECK_FAILED, code))
        code = await self._done
        self._parked.settle()
        await self._line.flush()
        return code

    def close(self) -> None:
        self._probes.close()
        if self._joined is not None:
            self._joined.cancel()
        self._processes.close()
        self._backups.close()
        self._parked.close()

    # events in

    def _post(self, event: Event, code: int = 0) -> None:
        before = self._state.phase
        self._state, actions = decide(self._state, event, code)
        if self._state.phase is not before:
            _log.info("phase=%s was=%s event=%s code=%d", self._state.phase, before, event, code)
        for action in actions:
            _ACTIONS[action](self)

    def _described(self, found: Needs) -> None:
        self._needs = found
        self._jit.named(found.jit)
        self._post(Event.CHECKED)

    def _from_agent(self, message: pb.AgentMessage) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                self._held_back = ""  # an agent that means it says it after its welcome
                self._post(Event.WELCOMED)
                self._say_what_is_pending()
            case "go":
                self._post(Event.GO)
            case "attach_answer" if self._server is not None:
                self._server.answer(message.attach_answer)
            case "set_role":
                self._told_role(message.set_role)
            case "stop":
                _log.info("agent=stop code=%d reason=%r", message.stop.exit_code, message.stop.reason)
                if message.stop.exit_code:
                    print(f"ling-engine: {message.stop.reason}", file=sys.stderr)  # noqa: T201
                self._post(Event.STOP, message.stop.exit_code)
            case "kill" if self._server is not None and self._server.id == message.kill.server:
                _log.error("server=killed reason=%r", message.kill.reason)
                self._post(Event.KILL)
            case "turn" if self._server is not None:
                self._server.tell_turn(message.turn.busy)
            case "readiness":
                self._held_back = message.readiness.reason if message.readiness.held_back else ""

    def _told_role(self, told: pb.SetRole) -> None:
        event = _TOLD.get(told.role)
        if told.term < self._term or event is None:
            _log.warning("agent=stale role=%d term=%d obeyed=%d", told.role, told.term, self._term)
            return
        self._term = told.term
        self._grace = told.grace_seconds or self._settings.grace_seconds
        self._post(event)

    def _say_what_is_pending(self) -> None:
        if self._server is not None:
            for request in self._server.pending:
                self._line.send(attach=self._server.attach(request))
            self._line.send(server_event=self._server.event())
        if self._state.leaving:
            self._line.send(leaving=pb.Leaving())

    def _server_phase(self, phase: str) -> None:
        if self._server is None:
            return
        self._metrics.phase(self._server.phases)
        self._line.send(server_event=self._server.event())
        if phase in _HEARD:
            self._post(_HEARD[phase])
        if phase == "accepting":
            self._parked.settle()
            self._jit.offer_later()

    def _place(self, fds: Sequence[int]) -> bool:
        """Parked connections go to a server that accepts, wait for one that starts, else the agent knows better."""
        if self._state.phase in (Phase.STARTING, Phase.WARM):
            return False
        if self._server is not None and self._state.phase in (Phase.ACTIVE, Phase.LEAVING):
            return self._server.child.put({"op": "parked"}, fds)
        return self._line.pass_on(fds)

    def _server_attaches(self, request: int) -> None:
        if self._server is not None:
            self._line.send(attach=self._server.attach(request))

    def _server_performed(self) -> None:
        if self._server is not None:
            self._line.send(performance=self._server.performed())

    def _server_ended(self, code: int) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        _log.info("server=ended code=%d phase=%s reason=%r", code, server.phase, server.reason)
        self._metrics.ended(code)
        self._line.send(server_event=server.event("exited", code))
        self._post(Event.SERVER_EXITED, code)
        if server.reason and (self._state.once or code == CheckpointChanged.exit_code):
            print(f"ling-engine: {server.reason}", file=sys.stderr)  # noqa: T201 - last: Kubernetes shows the last line

    # actions out

    def _join(self) -> None:
        self._joined = self._loop.create_task(self._line.run())
        if self._state.once:
            self._loop.call_later(_FILL_PATIENCE_S, self._give_up)

    def _give_up(self) -> None:
        if not self._line.connected and self._server is None and not self._done.done():
            reason = f"--run-dir {self._settings.run_dir}: no node agent answered for {_FILL_PATIENCE_S:g} s"
            self._done.set_exception(AgentUnreachable(reason))

    def _start_server(self) -> None:
        self._server = LaunchedServer(
            on_phase=self._server_phase,
            on_attach=self._server_attaches,
            on_performance=self._server_performed,
            on_ended=self._server_ended,
        )
        self._starting = self._loop.create_task(self._fork(self._server))

    async def _fork(self, server: LaunchedServer) -> None:
        await self._jit.settled()
        self._processes.fork("serve", server.child, server.id)

    def _tell(self, role: str) -> None:
        if self._server is not None:
            self._server.tell_role(role, self._term, self._grace)

    def _kill_server(self) -> None:
        if self._server is not None:
            self._server.child.kill()

    def _watch_leaving(self) -> None:
        self._left_at = self._loop.time()
        self._loop.call_later(_LEAVE_PATIENCE_S if self._line.connected else 0.0, self._leave_overdue)

    def _leave_overdue(self) -> None:
        """An agent that is there may have us accept a while longer, for a successor or as a lame duck.

        But not until the kubelet kills us: what is in flight then would be lost.
        """
        left = self._left_at + self._settings.leave_seconds - self._loop.time()
        if self._line.connected and left > 0:
            self._loop.call_later(min(_LEAVE_PATIENCE_S, left), self._leave_overdue)
        else:
            self._post(Event.LEAVE_OVERDUE)

    def _watch_drain(self) -> None:
        self._loop.call_later(self._grace + _DRAIN_MARGIN_S, self._drain_overdue, self._server)

    def _drain_overdue(self, server: LaunchedServer | None) -> None:
        if server is self._server:
            self._post(Event.DRAIN_OVERDUE)

    def _exit(self) -> None:
        if not self._done.done():
            self._done.set_result(self._state.exit_code)

    def _hello(self, ticket: bytes) -> pb.Hello:
        hello = pb.Hello(
            ticket=ticket,
            revision=self._settings.revision,
            runtime=self._settings.runtime,
            purpose=pb.PURPOSE_FILL if self._state.once else pb.PURPOSE_SERVE,
            plan=pb.Plan(private_bytes=self._needs.plan),
            weights=self._needs.weights,
            role=_ROLES.get(self._state.phase, pb.ROLE_GATED),
            term=self._term,
            device_bytes=self._needs.device_bytes,
            gpus=self._needs.gpus,
        )
        if self._server is not None:
            hello.server.CopyFrom(self._server.to_proto())
        return hello

    # probes

    async def _livez(self) -> tuple[int, str]:
        return 200, f"{self._state.phase}\n"

    async def _readyz(self) -> tuple[int, str]:
        if self._held_back:
            return 503, f"{self._state.phase}; {self._held_back}\n"
        serving = self._state.phase in (Phase.ACTIVE, Phase.LEAVING)
        return (200 if serving else 503), f"{self._state.phase}\n"

    async def _metrics_text(self) -> tuple[int, str]:
        own = self._metrics.text(self._state.phase, self._line.connected, self._backups.nbytes)
        return 200, own + (await self._server.metrics() if self._server is not None else "")


_ACTIONS: dict[Action, Callable[[Launcher], None]] = {
    Action.JOIN: Launcher._join,
    Action.START_SERVER: Launcher._start_server,
    Action.TELL_ACTIVE: lambda launcher: launcher._tell("active"),
    Action.TELL_DRAINING: lambda launcher: launcher._tell("draining"),
    Action.WATCH_DRAIN: Launcher._watch_drain,
    Action.SAY_LEAVING: lambda launcher: launcher._line.send(leaving=pb.Leaving()),
    Action.WATCH_LEAVING: Launcher._watch_leaving,
    Action.KILL_SERVER: Launcher._kill_server,
    Action.EXIT: Launcher._exit,
}
