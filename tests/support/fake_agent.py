"""The node agent's end of a folder socket, for tests of those who call there."""

import os
from pathlib import Path
from typing import Any

from ling_api import fdpass

TIMEOUT = 120.0


class FakeAgent:
    """Listens at RUN/fd.sock; `accept` waits for the next caller."""

    def __init__(self, run_dir: Path) -> None:
        self.listener = fdpass.listen(run_dir / "fd.sock")
        self.listener.settimeout(TIMEOUT)

    def accept(self) -> "Connection":
        sock, _ = self.listener.accept()
        sock.settimeout(TIMEOUT)
        return Connection(sock)

    def close(self) -> None:
        self.listener.close()


class Connection:
    """Blocking send and receive; descriptors that came in are closed with it."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.fds: list[int] = []

    def say(self, op: str, fds: Any = (), **fields: Any) -> None:
        fdpass.send(self.sock, {"op": op, **fields}, fds)

    def hear(self) -> tuple[dict[str, Any], list[int]]:
        message, fds = fdpass.receive(self.sock)
        self.fds += fds
        return message, fds

    def hear_until(self, op: str) -> list[tuple[dict[str, Any], list[int]]]:
        """Everything up to and including the first `op`."""
        heard = [self.hear()]
        while heard[-1][0]["op"] != op:
            heard.append(self.hear())
        return heard

    def close(self) -> None:
        fdpass.close_all(self.fds)
        self.fds = []
        self.sock.close()


def memfd(size: int) -> int:
    """A region: sized, not populated."""
    fd = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd
