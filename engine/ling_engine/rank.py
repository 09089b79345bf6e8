"""A server's own connection to the folder's fd socket: tickets become descriptors here, and connections move on.

The server's main process connects itself, because the agent takes the peer's pidfd as the truth about its death. It is
made again every 100 ms while the agent is away; requests in flight then fail with LinkLost and are asked again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_api import fdpass, messages, names
from ling_api.errors import LingError

from .channel import Channel, resolve
from .pulse import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)
RECONNECT_S = 0.1
Frame = tuple[dict[str, Any], list[int]]


class LinkLost(ConnectionError):
    """The agent went away before it answered. The catcher asks again once `welcomed`."""


class Declined(LingError):
    """The agent answered `error`; its text is the agent's reason. The catcher asks for a new ticket, or gives up."""


@dataclass(slots=True)
class _Request:
    future: asyncio.Future[list[Frame]]
    frames: list[Frame] = field(default_factory=list)


class RankLink:
    """`on_listener(fd, backlog)`: the slot has a new listener. `on_adopt(fds)`: connections of a predecessor."""

    def __init__(
        self,
        run_dir: Path,
        server: str,
        rank: int,
        *,
        on_listener: Callable[[int, int], None],
        on_adopt: Callable[[list[int]], None],
        on_welcome: Callable[[], None],
        on_promote: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = run_dir / names.FD_SOCKET
        self._hello = {"op": "hello", "version": fdpass.VERSION, "kind": "rank", "server": server, "rank": rank}
        self._on_listener = on_listener
        self._on_adopt = on_adopt
        self._on_welcome = on_welcome
        self._on_promote = on_promote
        self._channel: Channel | None = None
        self._welcome = asyncio.Event()
        self._requests: dict[int, _Request] = {}
        self._next = 0
        self._pulse: Pulse | None = None
        self.welcomes = 0  # grows with every agent that was met

    @property
    def connected(self) -> bool:
        return self._welcome.is_set()

    async def welcomed(self, after: int = 0) -> int:
        """Waits until an agent is there, one met later than `after`; returns its number."""
        while not self._welcome.is_set() or self.welcomes <= after:
            if self._welcome.is_set():
                await asyncio.sleep(RECONNECT_S)
            await self._welcome.wait()
        return self.welcomes

    async def run(self) -> None:
        """Keeps the connection; until cancelled."""
        while True:
            ended = asyncio.get_running_loop().create_future()
            try:
                self._connect(ended)
                await ended
            except OSError as error:
                _log.debug("folder=unreachable reason=%r", error)
            finally:
                self._lost()
            await asyncio.sleep(RECONNECT_S)

    def put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Sends a message that wants no answer. False: no agent is there."""
        if self._channel is None or not self.connected:
            return False
        return self._channel.put(message, fds)

    async def request(self, *frames: tuple[dict[str, Any], Sequence[int]]) -> list[Frame]:
        """Sends frames that are answered as one; returns the answer's frames, descriptors the caller's.

        Raises LinkLost, Declined.
        """
        if self._channel is None or not self.connected:
            raise LinkLost("no agent")
        self._next += 1
        number = self._next
        request = self._requests[number] = _Request(asyncio.get_running_loop().create_future())
        for message, fds in frames:
            self._channel.put({**message, "re": number}, fds)
        try:
            return await request.future
        finally:
            self._requests.pop(number, None)

    def _connect(self, ended: asyncio.Future[None]) -> None:
        sock = fdpass.connect(self._path, 1.0)
        self._channel = Channel(sock, self._frame, lambda: resolve(ended))
        self._channel.put(self._hello)

    def _lost(self) -> None:
        self._welcome.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for request in self._requests.values():
            for _, fds in request.frames:
                fdpass.close_all(fds)
            request.frames.clear()
            if not request.future.done():
                request.future.set_exception(LinkLost("the agent went away"))

    def _frame(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            messages.validate("agent->rank", message, len(fds))
        except fdpass.ProtocolError as error:
            fdpass.close_all(fds)
            _log.error("folder=nonsense reason=%r", error)
            return
        match message["op"]:
            case "welcome":
                self.welcomes += 1
                self._welcome.set()
                self._tell_pulse(message)
                self._on_welcome()
            case "promote":
                self._on_promote()
            case "adopt":
                self._on_adopt(fds)
            case "listener" if "re" not in message:
                self._on_listener(fds[0], message["backlog"])
            case _:
                self._answer(message, fds)

    def _tell_pulse(self, welcome: dict[str, Any]) -> None:
        """To an agent that knows what it is; of the main thread only, since the page tells the end of its maker."""
        if not welcome.get("pulse") or threading.current_thread() is not threading.main_thread():
            return
        if self._pulse is None:
            self._pulse = Pulse()
        self.put({"op": "pulse"}, [self._pulse.fd])

    def _answer(self, message: dict[str, Any], fds: list[int]) -> None:
        request = self._requests.get(message.get("re", -1))
        if request is None or request.future.done():
            fdpass.close_all(fds)
            if message["op"] == "error":
                _log.warning("folder=error reason=%r", message["reason"])
            return
        if message["op"] == "error":
            request.future.set_exception(Declined(message["reason"]))
            return
        request.frames.append((message, fds))
        if len(request.frames) == message.get("parts", 1):
            request.future.set_result(request.frames)
