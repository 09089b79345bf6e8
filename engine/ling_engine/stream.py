"""The launcher's line to the agent: folder connection and gRPC stream, made together and remade together.

Every 100 ms while the agent is away. Each time the truth is said again: the back-ups by the folder connection, role,
live server and term in the stream's Hello. Decides nothing: messages go to the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ling_api import fdpass, names
from ling_api.v1 import agent_pb2 as pb
from ling_api.v1 import agent_pb2_grpc

from .channel import Channel, resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from .backups import Backups
    from .jit_exchange import JitExchange

_log = logging.getLogger(__name__)
RECONNECT_S = 0.1
_TICKET_PATIENCE_S = 5.0
_COMPLAIN_S = 10.0  # how often an absent agent is logged
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the back-off of the last one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
)


class AgentLine:
    """`hello(ticket)` makes the Hello, `on_message` takes every AgentMessage, `on_parked` client connections."""

    def __init__(
        self,
        run_dir: Path,
        backups: Backups,
        *,
        hello: Callable[[bytes], pb.Hello],
        on_message: Callable[[pb.AgentMessage], None],
        on_parked: Callable[[list[int]], None],
        jit: JitExchange,
    ) -> None:
        self._run_dir = run_dir
        self._backups = backups
        self._hello = hello
        self._on_message = on_message
        self._on_parked = on_parked
        self._jit = jit
        self._folder: Channel | None = None
        self._ticket: asyncio.Future[bytes] | None = None
        self._out: asyncio.Queue[pb.LauncherMessage | None] | None = None
        self._welcomed = False

    @property
    def connected(self) -> bool:
        """The agent has answered Hello and the stream is open."""
        return self._welcomed

    def send(self, **message: Any) -> None:
        """One LauncherMessage; without an agent it is dropped, since the next Hello says what is true."""
        if self._out is not None:
            self._out.put_nowait(pb.LauncherMessage(**message))

    def pass_on(self, fds: Sequence[int]) -> bool:
        """Offers client connections (duplicates) to whoever serves; `on_parked` if nobody does. False: no agent."""
        if self._folder is None or not self._welcomed:
            return False
        return self._folder.put({"op": "pass", "count": len(fds)}, fds)

    async def flush(self) -> None:
        """Waits, a moment at most, until what was sent is on its way: for a process about to exit."""
        if self._out is not None:
            self._out.put_nowait(None)
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Until cancelled."""
        complained = time.monotonic()
        while True:
            try:
                await self._connected_once()
            except (OSError, grpc.RpcError, fdpass.ProtocolError) as error:
                reason = _words(error)
            except Exception as error:  # ours: without a line this pod would be deaf for ever, so it is made again
                _log.exception("agent=line-failed")
                reason = _words(error)
            else:
                reason = "stream ended"
            if time.monotonic() - complained > _COMPLAIN_S:
                complained = time.monotonic()
                _log.warning("agent=unreachable folder=%s reason=%r", self._run_dir, reason)
            await asyncio.sleep(RECONNECT_S)

    async def _connected_once(self) -> None:
        """One life of the pair; returns or raises when either ends."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self._ticket = loop.create_future()
        sock = fdpass.connect(self._run_dir / names.FD_SOCKET, 1.0)
        folder = self._folder = Channel(sock, self._from_folder, lambda: resolve(ended))
        try:
            folder.put({"op": "hello", "version": fdpass.VERSION, "kind": "launcher"})
            await asyncio.wait({self._ticket, ended}, timeout=_TICKET_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not self._ticket.done():
                raise ConnectionError("no ticket from the folder socket")
            for message, fds in self._backups.give_back():
                folder.put(message, fds)
            folder.put({"op": "ready"})
            talk = asyncio.create_task(self._talk(self._ticket.result()))
            await asyncio.wait({talk, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                talk.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talk
        finally:
            self._out, self._folder, self._welcomed = None, None, False
            folder.close()

    async def _talk(self, ticket: bytes) -> None:
        out: asyncio.Queue[pb.LauncherMessage | None] = asyncio.Queue()
        out.put_nowait(pb.LauncherMessage(hello=self._hello(ticket)))
        self._out = out
        async with grpc.aio.insecure_channel(f"unix:{self._run_dir / names.AGENT_SOCKET}", options=_OPTIONS) as channel:
            stub = agent_pb2_grpc.NodeAgentStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Engine(_queued(out))
            async for message in call:
                if message.WhichOneof("message") == "welcome":
                    self._welcomed = True
                self._on_message(message)

    def _from_folder(self, message: dict[str, Any], fds: list[int]) -> None:
        folder = self._folder
        if folder is None:
            fdpass.close_all(fds)
            return
        match message["op"]:
            case "ticket" if self._ticket is not None and not self._ticket.done():
                self._ticket.set_result(bytes.fromhex(message["ticket"]))
                self._jit.met(message.get("jit", False), folder.put)
            case "jit":
                self._jit.came(message, fds)
            case "keep":
                folder.put(self._backups.keep(message, fds))
            case "keep-manifest":
                answer = self._backups.keep_manifest(message, fds)
                if answer is not None:
                    folder.put(answer)
            case "drop":
                folder.put(self._backups.drop(message["set"]))
            case "listener":
                self._backups.keep_listener(fds[0])
            case "park":
                self._on_parked(fds)
            case other:
                fdpass.close_all(fds)
                _log.warning("folder=unexpected op=%s reason=%r", other, message.get("reason", ""))


def _words(error: Exception) -> str:
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return details or type(error).__name__


async def _queued(out: asyncio.Queue[pb.LauncherMessage | None]) -> AsyncIterator[pb.LauncherMessage]:
    while (message := await out.get()) is not None:
        yield message
