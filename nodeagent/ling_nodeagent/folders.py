"""The device folders: one per kubelet device, each with its own socket, so that the folder says who is calling.

    RUN/agent.sock            gRPC, hard-linked into every folder
    RUN/sockets/dNNN          the folder's own descriptor socket, hard-linked as RUN/d/dNNN/fd.sock
    RUN/d/dNNN/               what a pod sees as /run/ling

The sockets are bound outside and linked inside: a folder may be emptied for its next pod without a new socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from typing import TYPE_CHECKING

from ling_api import fdpass, names

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

LOG = logging.getLogger(__name__)
ACCEPTS = 64  # connections taken from one socket before others have their turn


class Folders:
    """`on_call(device, socket)` takes every connection."""

    def __init__(self, run_dir: Path, count: int, on_call: Callable[[str, socket.socket], None]) -> None:
        self._run_dir = run_dir
        self._devices = tuple(f"d{number:03d}" for number in range(count))
        self._on_call = on_call
        self._listeners: dict[str, socket.socket] = {}

    @property
    def agent_socket(self) -> Path:
        return self._run_dir / names.AGENT_SOCKET

    def path(self, device: str) -> Path:
        return self._run_dir / "d" / device

    def open(self) -> None:
        """Makes folders and sockets and begins to listen. Raises OSError."""
        sockets = self._run_dir / "sockets"
        sockets.mkdir(parents=True, exist_ok=True)
        sockets.chmod(0o700)
        (self._run_dir / "d").mkdir(exist_ok=True)
        loop = asyncio.get_running_loop()
        for device in self._devices:
            self.path(device).mkdir(exist_ok=True)
            self.path(device).chmod(0o711)
            sock = fdpass.listen(sockets / device)
            sock.setblocking(False)
            self._listeners[device] = sock
            _link(sockets / device, self.path(device) / names.FD_SOCKET)
            loop.add_reader(sock.fileno(), self._accept, device, sock)

    def link_agent(self) -> None:
        """Puts the gRPC socket into every folder, once it is bound."""
        self.agent_socket.chmod(0o666)
        for device in self._devices:
            _link(self.agent_socket, self.path(device) / names.AGENT_SOCKET)

    def renew(self, device: str) -> Path:
        """Empties a folder for its next pod - mounts keep the inode - and puts the sockets back."""
        folder = self.path(device)
        if device not in self._listeners:
            raise ValueError(f"{device!r} is none of the {len(self._devices)} devices")
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        _link(self._run_dir / "sockets" / device, folder / names.FD_SOCKET)
        _link(self.agent_socket, folder / names.AGENT_SOCKET)
        return folder

    def _accept(self, device: str, listener: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # too many open files: the caller waits in the backlog
                LOG.error("device=%s accept failed: %s", device, error)
                return
            self._on_call(device, sock)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listeners.values():
            loop.remove_reader(sock.fileno())
            sock.close()
        self._listeners.clear()


def _link(source: Path, target: Path) -> None:
    """A hard link in place of what lies at `target`: callers meet the old socket or the new, never none."""
    new = target.with_name(target.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    os.link(source, new)
    new.replace(target)
    with contextlib.suppress(FileNotFoundError):
        new.unlink()  # both were the same file already: then rename does nothing
