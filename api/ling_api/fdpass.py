"""Frames with file descriptors over a Unix stream socket (docs/protocol.md, version 1). Standard library only.

One frame = 4 bytes big-endian length, then that many bytes of one JSON object with the key `op`; its descriptors ride
on the frame's first byte. Nothing here ever changes a socket's blocking mode: that belongs to the open file, which
other processes may share. Whoever receives descriptors owns them; on every error path they are closed here.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import math
import os
import resource
import select
import socket
import struct
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
MAX_FDS: Final = 128
HEADER: Final = struct.Struct(">I")

type Frame = tuple[dict[str, Any], list[int]]

_SO_NETNS_COOKIE: Final = 71
_SO_PEERPIDFD: Final = 77
_CONTROL_BYTES: Final = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_READ_BYTES: Final = 1 << 16
_FRAMES_AT_ONCE: Final = 64  # so that one talkative peer does not hold up an event loop
_PATIENCE_S: Final = 10.0  # how long `send` waits for room on a non-blocking socket


class ProtocolError(Exception):
    """The peer broke the framing or the protocol. The catcher closes the connection."""


class PeerGone(ConnectionError):
    """The peer closed the connection. The catcher closes its end and, where it called, connects again."""


def close_all(fds: Iterable[int]) -> None:
    """Closes each descriptor; one that is closed already is passed over."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def allow_many() -> None:
    """Lets this process and those it starts open as many descriptors as the system allows: 1024, the usual, are few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends one whole frame, or raises; the descriptors stay the caller's.

    A non-blocking socket is waited for, at most 10 s. After an error part of the frame may be on its way: close the
    socket. Raises ProtocolError (frame too big), PeerGone, TimeoutError.
    """
    data = memoryview(encode(message, len(fds)))
    rights: Sequence[int] = fds
    while data:
        try:
            sent = _send_some(sock, data, rights, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            if not _ready(sock, select.POLLOUT, _PATIENCE_S):
                raise TimeoutError(f"the peer read nothing for {_PATIENCE_S:g} s") from None
            continue
        data = data[sent:]
        rights = ()


def receive(sock: socket.socket) -> Frame:
    """Waits for one frame. Raises PeerGone (end between two frames), ProtocolError, TimeoutError (the socket's own)."""
    reader = Reader(sock)
    try:
        while True:
            try:
                return reader.take(0)
            except BlockingIOError:
                _ready(sock, select.POLLIN, None)
    finally:
        reader.close()


class Reader:
    """Collects frames from a socket in an event loop: call `read` whenever the socket is readable.

    It never asks the kernel for more than the rest of one frame, so descriptors cannot go to the wrong one.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()  # of the incomplete frame, as are its descriptors
        self._fds: list[int] = []

    def read(self) -> list[Frame]:
        """The complete frames that are readable now, without waiting; their descriptors are the caller's.

        Raises PeerGone, ProtocolError. After frames that came before the end, the next call raises PeerGone (a socket
        at its end stays readable). After ProtocolError nothing of this call is returned and nothing stays open.
        """
        frames: list[Frame] = []
        try:
            while len(frames) < _FRAMES_AT_ONCE:
                frames.append(self.take(socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except PeerGone:
            if not frames:
                raise
        except BaseException:
            for _, fds in frames:
                close_all(fds)
            self.close()
            raise
        return frames

    def take(self, flags: int) -> Frame:
        """One frame; `flags` of recvmsg. Raises BlockingIOError (what came is kept), PeerGone, ProtocolError."""
        while missing := self._missing():
            self._receive(min(missing, _READ_BYTES), flags)
        message = decode(bytes(self._buffer[HEADER.size :]))
        fds, self._fds = self._fds, []
        self._buffer.clear()
        return message, fds

    def close(self) -> None:
        """Closes the descriptors of an incomplete frame; the socket stays the caller's."""
        close_all(self._fds)
        self._fds.clear()
        self._buffer.clear()

    def _missing(self) -> int:
        """Bytes until the header is complete, then until the frame is."""
        if len(self._buffer) < HEADER.size:
            return HEADER.size - len(self._buffer)
        (length,) = HEADER.unpack_from(self._buffer)
        if not 2 <= length <= MAX_BYTES:
            raise ProtocolError(f"a frame of {length} bytes; allowed are 2 to {MAX_BYTES}")
        return HEADER.size + int(length) - len(self._buffer)

    def _receive(self, size: int, flags: int) -> None:
        if flags & socket.MSG_DONTWAIT and self._sock.gettimeout() and not _ready(self._sock, select.POLLIN, 0):
            raise BlockingIOError  # python itself would wait, for the socket's time-out
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data, control, flags, _ = self._sock.recvmsg(size, _CONTROL_BYTES, flags | socket.MSG_CMSG_CLOEXEC)
            came = list(_descriptors(control))
            self._fds += came
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError(f"descriptors were lost: more than {MAX_FDS} in a frame, or too many open here")
            if came and self._buffer:
                raise ProtocolError("descriptors must ride on a frame's first byte")
        if not data and self._buffer:
            raise ProtocolError("the connection ended inside a frame")
        if not data:
            raise PeerGone("the peer closed the connection")
        self._buffer += data


class Writer:
    """Queues frames for a socket in an event loop: `put`, then `flush` whenever the socket is writable."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self.descriptors = 0  # that wait to be sent
        self.nbytes = 0  # as do these

    @property
    def pending(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._queue)

    def put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Queues one frame with duplicates of the descriptors. Raises ProtocolError when it is too big."""
        data = memoryview(encode(message, len(fds)))
        own: list[int] = []
        try:
            own.extend(os.dup(fd) for fd in fds)
        except BaseException:
            close_all(own)
            raise
        self._queue.append((data, own))
        self.descriptors += len(own)
        self.nbytes += len(data)

    def flush(self) -> bool:
        """Sends what the socket takes without waiting. True: all is sent. Raises PeerGone."""
        while self._queue:
            data, fds = self._queue[0]
            if self._sock.gettimeout() and not _ready(self._sock, select.POLLOUT, 0):
                return False
            try:
                sent = _send_some(self._sock, data, fds, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            close_all(fds)
            self.descriptors -= len(fds)
            self.nbytes -= sent
            if sent == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = (data[sent:], [])
        return True

    def close(self) -> None:
        """Closes the descriptors of what was not sent; the socket stays the caller's."""
        while self._queue:
            close_all(self._queue.popleft()[1])
        self.descriptors = self.nbytes = 0


def listen(path: str | os.PathLike[str], *, backlog: int = 1024, mode: int = 0o666) -> socket.socket:
    """A listening socket at `path`, in place of the socket file that lies there. Raises OSError."""
    path = Path(path)
    if path.exists(follow_symlinks=False) and not path.is_socket():
        raise FileExistsError(errno.EEXIST, "lies where the socket should be and is no socket", str(path))
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(new))
        new.chmod(mode)
        sock.listen(backlog)
        new.rename(path)  # callers meet the old socket or the new one, never none
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: str | os.PathLike[str], timeout: float | None = None) -> socket.socket:
    """Connects to `path`; the time-out (seconds) stays on the socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return sock


def peer_pidfd(sock: socket.socket) -> int:
    """A pidfd (close-on-exec) of the process that called connect(). Raises PeerGone when it is dead already."""
    try:
        fd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):
            raise PeerGone("the peer's process is gone") from error
        raise
    os.set_inheritable(fd, False)
    return fd


def netns_cookie(sock: socket.socket) -> int:
    """The number of the network namespace in which the socket was made."""
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")


def encode(message: dict[str, Any], nfds: int = 0) -> bytes:
    """The frame's bytes. Raises ProtocolError when the message does not fit in a frame."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes is too long; at most {MAX_BYTES}")
    if nfds > MAX_FDS:
        raise ProtocolError(f"a frame with {nfds} descriptors has too many; at most {MAX_FDS}")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """The message of a frame's body. Raises ProtocolError when it is no JSON object with the key `op`."""
    try:
        message = json.loads(body.decode(), parse_constant=_finite, parse_float=_finite)
        if b"\\u" in body:
            json.dumps(message, ensure_ascii=False).encode()  # half a surrogate pair would break a log line later
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame is not JSON in UTF-8: {type(error).__name__}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
        raise ProtocolError("a frame must be a JSON object with the text `op`")
    return message


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number")
    return number


def _send_some(sock: socket.socket, data: memoryview, fds: Sequence[int], flags: int) -> int:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        return sock.sendmsg([data], rights, flags)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise PeerGone("the peer closed the connection") from error


def _descriptors(control: list[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            yield from numbers


def _ready(sock: socket.socket, event: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
