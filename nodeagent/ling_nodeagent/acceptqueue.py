"""How many connections wait in a listener's queue: the kernel tells it of any descriptor of the socket."""

from __future__ import annotations

import socket
import struct
from typing import Final

_TCP_INFO_BYTES: Final = 104
_UNACKED: Final = struct.Struct("=I")  # of a listener: connections that nobody has accepted yet
_UNACKED_AT: Final = 24


def waiting(listener: int) -> int:
    """The descriptor stays the caller's. 0 when it is no listener of TCP."""
    try:
        sock = socket.socket(fileno=listener)
    except OSError:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    finally:
        sock.detach()
    return int(_UNACKED.unpack_from(info, _UNACKED_AT)[0]) if info[0] == _LISTEN else 0


_LISTEN: Final = 10  # tcpi_state
