"""Ports for processes that are started here: nobody is given one of them between the choice and the process's bind.

A port that the kernel hands out for port 0 may be handed out again at once, to the next connection that anybody makes.
These lie outside the range that it hands out from (`ip_local_port_range`), and below Kubernetes' NodePorts.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path
from typing import Final

LEAST, MOST = 10240, 29999
_RANDOM: Final = random.SystemRandom()  # pytest-randomly gives the usual one the same seed before every test
_given: Final[set[int]] = set()


def _choices() -> list[int]:
    """All of ours that the kernel gives to nobody who asks for none; where it gives all of them, all the same."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ours = range(LEAST, MOST + 1)
    return [port for port in ours if not low <= port <= high] or list(ours)


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def free_port() -> int:
    """A TCP port that nobody uses, on any address; never the same one twice. AssertionError when none is found."""
    choices = _choices()
    for _ in range(1000):
        port = _RANDOM.choice(choices)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port was found from {LEAST} to {MOST}")


def free_ports(count: int) -> list[int]:
    """So many of them."""
    return [free_port() for _ in range(count)]
