"""One caller on a folder socket, on the event loop: frames in and out, and the death of its process.

The connection may end while the process lives on and comes back; the process's death (SO_PEERPIDFD) is watched until
it happens, however often the connection ends. Whoever is given a frame owns its descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from ling_api import fdpass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

LOG = logging.getLogger(__name__)
SAY_AGAIN = 60.0  # seconds
# What may wait for a pod that does not read: twice the regions of a slot, so that a set and connections fit.
MOST_DESCRIPTORS = 8192  # over all connections of a folder
MOST_BYTES = 16 << 20  # of one connection


class Refusals:
    """What was said to whom: a caller comes back ten times a second, the log wants to hear of it once a minute."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}

    def new(self, device: str, reason: str, now: float) -> bool:
        """Whether this was not said there within the last minute."""
        before, at = self._said.get(device, ("", 0.0))
        if before == reason and now < at + SAY_AGAIN:
            return False
        self._said[device] = (reason, now)
        return True

    def level(self, device: str, reason: str, now: float) -> int:
        """Of a log line that tells it."""
        return logging.INFO if self.new(device, reason, now) else logging.DEBUG


class Connection:
    """`on_frame(self, message, fds)` for every frame, `on_end(self)` once however it ends."""

    def __init__(
        self,
        number: int,
        device: str,
        sock: socket.socket,
        *,
        on_frame: Callable[[Connection, dict[str, Any], list[int]], None],
        on_end: Callable[[Connection], None],
        refusals: Refusals,
        crowd: Callable[[], int] | None = None,
    ) -> None:
        """`crowd()`: how many descriptors wait for this connection's pod, over all its connections."""
        self._refusals = refusals
        self._crowd = crowd or (lambda: self.waiting)
        sock.setblocking(False)
        self.number = number
        self.device = device
        self.direction = ""  # "keeper->agent", ... once it has said hello
        self.uid = self.slot = self.server = ""
        self.rank = 0
        self.deposits: dict[str, str] = {}  # the tickets redeemed here, by set
        self.pulsed = False  # it has told of its page
        self.closed = False
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._reader = fdpass.Reader(sock)
        self._writer = fdpass.Writer(sock)
        self._loop = asyncio.get_running_loop()
        self._writing = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def waiting(self) -> int:
        """How many descriptors wait for the peer to read."""
        return self._writer.descriptors

    def has_room(self, more: int, most: int | None = None) -> bool:
        """Whether so many descriptors more can be sent now, or wait beside what waits (`most`: with it)."""
        most = MOST_DESCRIPTORS if most is None else most
        return self._writer.nbytes <= MOST_BYTES and (not self._writer.pending or self._crowd() + more <= most)

    def put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends a frame, now or when the peer reads; `fds` stay the caller's. After the end nothing is sent.

        What cannot be sent, or is too much for a peer that does not read, ends the connection: after its next hello
        the peer is told all of it again.
        """
        if self.closed:
            return
        if not self.has_room(len(fds)):
            self.note("it does not read: too much waits for it")
            self.close()
            return
        try:
            self._writer.put(message, fds)
        except (OSError, fdpass.ProtocolError) as error:
            LOG.error("conn=%d device=%s op=%s not sent: %s", self.number, self.device, message["op"], error)
            self.close()
            return
        self._writable()

    def refuse(self, reason: str) -> None:
        """Says why and ends the connection."""
        self.note(reason)
        self.put({"op": "error", "reason": reason})
        self.close()

    def note(self, reason: str) -> None:
        """Tells the log why something was refused."""
        level = self._refusals.level(self.device, reason, self._loop.time())
        LOG.log(level, "conn=%d device=%s refused=%r", self.number, self.device, reason)

    def drain(self) -> None:
        """Delivers what a peer that is known to be dead left behind."""
        if not self.closed:
            self._readable()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._reader.close()
        self._writer.close()
        self._sock.close()
        self._on_end(self)

    def _readable(self) -> None:
        try:
            frames = self._reader.read()
        except fdpass.ProtocolError as error:
            self.refuse(str(error))
            return
        except OSError:
            self.close()
            return
        for message, fds in frames:
            if self.closed:
                fdpass.close_all(fds)
            else:
                self._deliver(message, fds)

    def _deliver(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            self._on_frame(self, message, fds)
        except fdpass.ProtocolError as error:
            fdpass.close_all(fds)
            self.refuse(str(error))
        except BaseException:  # ours, not the peer's: it gets a new connection, the loop's handler gets the traceback
            self.close()
            raise

    def _writable(self) -> None:
        try:
            done = self._writer.flush()
        except OSError:
            self.close()
            return
        if done and self._writing:
            self._loop.remove_writer(self._sock.fileno())
        elif not done and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._writing = not done


class Deaths:
    """Watches processes: `on_death(key)` once for each key when its process is dead.

    One descriptor per process, however many keys (connections) it has: where pidfds have inodes of their own, the
    inode is the process.
    """

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self._on_death = on_death
        self._processes: dict[int, tuple[int, set[int]]] = {}  # pidfd and keys
        self._of: dict[int, int] = {}  # the process of each key
        other = os.eventfd(0)
        self._shared = os.fstat(other).st_ino  # before Linux 6.9 every pidfd has this one too
        os.close(other)

    def __len__(self) -> int:
        return len(self._of)

    def watch(self, key: int, pidfd: int) -> None:
        """The descriptor becomes ours."""
        inode = os.fstat(pidfd).st_ino
        process = -pidfd if inode == self._shared else inode
        if process in self._processes:
            os.close(pidfd)
        else:
            self._processes[process] = (pidfd, set())
            asyncio.get_running_loop().add_reader(pidfd, self._dead, process)
        self._processes[process][1].add(key)
        self._of[key] = process

    def same(self, key: int) -> frozenset[int]:
        """The keys of the same process, itself among them."""
        return frozenset(self._processes[self._of[key]][1]) if key in self._of else frozenset()

    def _dead(self, process: int) -> None:
        for key in sorted(self._processes[process][1]):
            self.forget(key)
            self._on_death(key)

    def forget(self, key: int) -> None:
        process = self._of.pop(key, None)
        if process is None:
            return
        pidfd, keys = self._processes[process]
        keys.discard(key)
        if not keys:
            del self._processes[process]
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        for key in tuple(self._of):
            self.forget(key)
