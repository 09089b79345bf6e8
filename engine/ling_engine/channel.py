"""One framed Unix socket (ling_api.fdpass) on an asyncio loop: frames in by call-back, frames out in order.

The receiver of a frame owns its descriptors. Whatever ends the connection, a broken frame included, is told once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ling_api import fdpass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)
Message = dict[str, Any]


def resolve(future: asyncio.Future[None]) -> None:
    """Marks it done, once."""
    if not future.done():
        future.set_result(None)


class Channel:
    """Owns the socket. `on_frame(message, fds)` for every frame; `on_end()` once, unless `close()` came first."""

    def __init__(
        self, sock: socket.socket, on_frame: Callable[[Message, list[int]], None], on_end: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._reader = fdpass.Reader(sock)
        self._writer = fdpass.Writer(sock)
        self._loop = asyncio.get_running_loop()
        self._writing = False
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def put(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Sends a frame, now or as soon as the peer reads; the caller keeps `fds`.

        False: the connection has ended, perhaps by this frame (no descriptor left for its duplicates).
        """
        if not self.closed:
            try:
                self._writer.put(message, fds)
            except OSError as error:
                self._end(error)
            else:
                self._writable()
        return not self.closed

    def drain(self) -> None:
        """Delivers the frames that a peer known to be dead left behind."""
        if not self.closed:
            self._readable()

    def close(self) -> None:
        """Ends the connection; nothing is told."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._reader.close()
        self._writer.close()
        self._sock.close()

    def _readable(self) -> None:
        try:
            frames = self._reader.read()
        except (OSError, fdpass.ProtocolError) as error:
            self._end(error)
            return
        for position, (message, fds) in enumerate(frames):
            if self.closed:
                for _, rest in frames[position:]:
                    fdpass.close_all(rest)
                return
            self._on_frame(message, fds)

    def _writable(self) -> None:
        try:
            done = self._writer.flush()
        except OSError as error:
            self._end(error)
            return
        if done and self._writing:
            self._loop.remove_writer(self._sock.fileno())
        elif not done and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._writing = not done

    def _end(self, error: Exception) -> None:
        if self.closed:
            return
        _log.debug("channel=ended reason=%r", error)
        self.close()
        self._on_end()
