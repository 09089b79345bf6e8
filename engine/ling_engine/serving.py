"""HTTP on the slot's listener: accept when active, take over a predecessor's connections, drain without losing one.

The listener is shared by every engine of the slot, so it is only ever closed, never shut down, and the keeper's
backlog is repeated with every listen(). An idle keep-alive connection must not be closed while its client may still
use it (a request on the wire would be lost): it moves to the successor as a descriptor, or stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ling_api import fdpass

from .middleware import ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .metrics import ServerMetrics
    from .middleware import Middleware

_log = logging.getLogger(__name__)
KEEP_ALIVE_S = 100  # longer than clients' pools keep an idle connection (httpx 5 s, most proxies 60 s, Go 90 s)
_TICK_S = 0.02
_CUT_PATIENCE_S = 1.0  # for cut requests to send their error
_PASS_AT_ONCE = 64
_PASS_AGAIN_S = 1.0  # after connections came back because no successor was there


class SlotServer:
    """A uvicorn server whose listener comes and goes. Everything runs on the event loop."""

    def __init__(self, app: Middleware, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
        )
        self._uvicorn = uvicorn.Server(self._config)
        self._acceptor: asyncio.Server | None = None
        self._inode = 0  # of the listener that is accepted on
        self._waiting: list[int] = []  # connections that came before we accept
        self._pass_after = 0.0
        self._ticks: asyncio.Task[None] | None = None

    @property
    def accepting(self) -> bool:
        return self._acceptor is not None

    async def start(self) -> None:
        """Runs the application's start-up; nothing is accepted yet."""
        self._config.load()
        self._uvicorn.lifespan = self._config.lifespan_class(self._config)
        await self._uvicorn.startup(sockets=[])
        self._ticks = asyncio.create_task(self._uvicorn.main_loop())

    async def accept(self, listener: int, backlog: int) -> None:
        """Accepts on the listener (the descriptor becomes ours) instead of the one before; not once we drain."""
        inode = os.fstat(listener).st_ino
        if self._app.closing or (inode == self._inode and self._acceptor is not None):
            fdpass.close_all([listener])
            return
        sock = socket.socket(fileno=listener)
        sock.setblocking(False)
        acceptor = await asyncio.get_running_loop().create_server(self._arrived, sock=sock, backlog=backlog)
        if self._app.closing:  # the word to drain came meanwhile
            await _stop(acceptor)
            return
        former, self._acceptor, self._inode = self._acceptor, acceptor, inode
        await _stop(former)
        waiting, self._waiting = self._waiting, []
        await self.adopt(waiting)

    async def adopt(self, fds: Sequence[int]) -> None:
        """Serves connections that a predecessor accepted; they become ours. Before `accept` they wait."""
        if self._acceptor is None and not self._app.closing:
            self._waiting.extend(fds)
            return
        for fd in fds:
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # the client has closed it
                await asyncio.get_running_loop().connect_accepted_socket(self._protocol, sock)
        self._metrics.moved("adopted", len(fds))
        if self._app.closing:  # nobody takes them: they came back
            self._pass_after = asyncio.get_running_loop().time() + _PASS_AGAIN_S

    async def drain(self, grace_seconds: float, pass_on: Callable[[list[int]], bool]) -> None:
        """Ends accepting; returns when nothing is left, after the grace period at the latest.

        `pass_on(fds)` sends idle connections to the successor (duplicates are made); False: nobody takes them now.
        """
        self._app.closing = True
        former, self._acceptor = self._acceptor, None
        await _stop(former)
        waiting, self._waiting = self._waiting, []
        await self.adopt(waiting)
        deadline = asyncio.get_running_loop().time() + grace_seconds
        busy = True  # what was accepted just now becomes a connection a moment later
        while busy and asyncio.get_running_loop().time() < deadline:
            if asyncio.get_running_loop().time() >= self._pass_after:
                self._pass_idle(pass_on)
            await asyncio.sleep(_TICK_S)
            busy = self._busy()
        cut = self._app.cut()
        if cut:
            _log.warning("drain=cut requests=%d grace_s=%g", cut, grace_seconds)
        if self._app.busy and self._uvicorn.server_state.tasks:
            await asyncio.wait(self._uvicorn.server_state.tasks, timeout=_CUT_PATIENCE_S)
        await self._close()

    async def _close(self) -> None:
        for connection in list(self._uvicorn.server_state.connections):
            connection.shutdown()
        if self._ticks is not None:
            self._ticks.cancel()  # it would notice an end within 0.1 s only, and a successor may wait for our memory
            await asyncio.wait([self._ticks])
        await self._uvicorn.lifespan.shutdown()

    def _busy(self) -> bool:
        return bool(self._uvicorn.server_state.connections) or self._app.busy

    def _protocol(self, **more: Any) -> H11Protocol:
        state = {**self._uvicorn.lifespan.state, **more}
        return H11Protocol(config=self._config, server_state=self._uvicorn.server_state, app_state=state)

    def _arrived(self) -> H11Protocol:
        """Of a connection that came through the listener: its first generation is a client's arrival."""
        return self._protocol(**{ARRIVAL: [True]})

    def _pass_idle(self, pass_on: Callable[[list[int]], bool]) -> None:
        idle = [one for one in self._uvicorn.server_state.connections if isinstance(one, H11Protocol) and _idle(one)]
        for start in range(0, len(idle), _PASS_AT_ONCE):
            batch = idle[start : start + _PASS_AT_ONCE]
            if not pass_on([_socket(one).fileno() for one in batch]):
                return
            for one in batch:
                _leave(one)
            self._metrics.moved("passed", len(batch))


async def _stop(acceptor: asyncio.Server | None) -> None:
    """Accepts no more there; what was accepted becomes a connection. Only our duplicate of the listener is closed."""
    if acceptor is not None:
        for sock in acceptor.sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        await asyncio.sleep(0)  # a server closed at once forgets, open and unanswered, what it has just accepted
        acceptor.close()


def _idle(connection: H11Protocol) -> bool:
    """Whether nothing of the connection is in this process: no request, no unparsed byte, no unsent one."""
    if connection.transport.is_closing() or connection.transport.get_write_buffer_size():
        return False
    if connection.cycle is not None and not connection.cycle.response_complete:
        return False
    states = (connection.conn.our_state, connection.conn.their_state)
    return states == (h11.IDLE, h11.IDLE) and not connection.conn.trailing_data[0]


def _leave(connection: H11Protocol) -> None:
    """Lets go of a connection that the successor holds: no byte is sent, the socket lives on."""
    connection._unset_keepalive_if_required()
    connection.transport.abort()


def _socket(connection: H11Protocol) -> Any:
    return connection.transport.get_extra_info("socket")
