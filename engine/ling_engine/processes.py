"""The launcher's children: starts the zygote, asks it for servers, learns of every exit, reaps every orphan.

The launcher is the subreaper: when the zygote dies, its servers become the launcher's own children and live on. How a
server ended is told by the zygote, or seen by reaping; its pidfd says when.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .settings import EngineSettings

_log = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36
_STATUS_PATIENCE_S = 0.5  # from a pidfd's word of death to the exit status, which comes by another way
_EXIT_PATIENCE_S = 1.0  # from the end of its control socket to its death
_ORPHANS_S = 2.0  # after a server's death, whose own children die a moment later
_OURS = ("ling-server", "ling-check", "ling-zygote")  # what a process of ours calls itself
_AGAIN_S = 1.0  # before a zygote that could not even start is started again
UNKNOWN = -int(signal.SIGKILL)  # exit code of a child that nobody could ask


@dataclass(slots=True, eq=False)
class Child:
    """A fork of the zygote. `told(message, fds)` for its frames, `ended(code)` once when it is dead."""

    told: Callable[[dict[str, Any], list[int]], None]
    ended: Callable[[int], None]
    channel: Channel | None = None
    pid: int | None = None
    pidfd: int | None = None
    doomed: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """False: it is not there to be told."""
        return self.channel is not None and self.channel.put(message, fds)

    def kill(self) -> None:
        """SIGKILL, as soon as its pid is known."""
        self.doomed = True
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Processes:
    """Owns the zygote and its children.

    `failed(code)`: the zygote could not start. `kernels(key)`: what it will need, said before it imports anything.
    """

    def __init__(self, settings: EngineSettings, failed: Callable[[int], None], kernels: Callable[[str], None]) -> None:
        self._settings = settings
        self._failed = failed
        self._kernels = kernels
        self._loop = asyncio.get_running_loop()
        self._zygote: Channel | None = None
        self._zygote_pid = 0
        self._ready = False
        self._children: set[Child] = set()
        self._closed = False
        self._bereft_until = 0.0  # until then every orphan is a dead server's
        self.zygote_starts = 0
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self) -> None:
        """Starts a zygote; requests wait in its socket until it has imported everything."""
        if self._closed:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        argv = [sys.executable, "-m", "ling_engine.zygote", self._settings.to_json()]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        # spawn, not fork: this process may have gRPC's threads, and all its descriptors are close-on-exec.
        self._zygote_pid = os.posix_spawn(sys.executable, argv, env, file_actions=actions)
        theirs.close()
        self._ready = False
        self.zygote_starts += 1
        self._zygote = Channel(ours, self._from_zygote, lambda: None)  # its end is seen by reaping

    def fork(self, entry: str, child: Child, server: str = "") -> None:
        """`entry` is `serve` or `describe`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        child.channel = Channel(ours, lambda m, fds: self._from_child(child, m, fds), lambda: self._hung_up(child))
        self._children.add(child)
        if self._zygote is not None:
            self._zygote.put({"op": "fork", "entry": entry, "server": server}, [theirs.fileno()])
        theirs.close()

    def close(self) -> None:
        """Kills all of them, the zygote included."""
        self._closed = True
        for child in self._children:
            child.kill()
        if self._zygote is not None:
            self._zygote.close()
        if self._zygote_pid:
            os.kill(self._zygote_pid, signal.SIGKILL)
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _from_zygote(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "ready":
            self._ready = True
        elif message["op"] == "kernels":
            self._kernels(message["key"])
        elif message["op"] == "exited":
            self._exited(message["pid"], message["code"])

    def _from_child(self, child: Child, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] != "started":
            child.told(message, fds)
            return
        child.pid = message["pid"]
        with contextlib.suppress(ProcessLookupError):
            child.pidfd = os.pidfd_open(message["pid"])
            self._loop.add_reader(child.pidfd, self._dead, child)
        child.told(message, fds)
        if child.doomed:
            child.kill()

    def _hung_up(self, child: Child) -> None:
        """Its control socket ended: it is dead, or dying, or was never forked (the zygote died with the request)."""
        if child.pidfd is None:  # a zygote's sockets end before it can be reaped: whose end this is, is known then
            child.timers.append(self._loop.call_later(_STATUS_PATIENCE_S, self._end, child, UNKNOWN))
        else:
            child.timers.append(self._loop.call_later(_EXIT_PATIENCE_S, child.kill))

    def _dead(self, child: Child) -> None:
        if child.pidfd is not None:
            self._loop.remove_reader(child.pidfd)
        child.timers.append(self._loop.call_later(_STATUS_PATIENCE_S, self._end, child, UNKNOWN))

    def _kill_orphans(self) -> None:
        """What a server that has just died left behind comes to its subreaper, this process: none may hold memory."""
        if self._loop.time() > self._bereft_until:
            return
        known = {self._zygote_pid, *(child.pid for child in self._children)}
        for pid in _children_of(os.getpid()):
            if pid not in known and _name_of(pid) not in _OURS:
                _log.warning("orphan=killed pid=%d name=%s", pid, _name_of(pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        self._reap_all()
        self._kill_orphans()

    def _reap_all(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._zygote_pid:
                self._zygote_ended(code)
            else:
                self._exited(pid, code)

    def _exited(self, pid: int, code: int) -> None:
        for child in list(self._children):
            if child.pid == pid:
                self._end(child, code)

    def _end(self, child: Child, code: int) -> None:
        if child not in self._children:
            return
        self._children.discard(child)
        for timer in child.timers:
            timer.cancel()
        if child.channel is not None:
            child.channel.drain()
            child.channel.close()
        if child.pidfd is not None:
            self._loop.remove_reader(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = None
        self._bereft_until = self._loop.time() + _ORPHANS_S
        self._kill_orphans()
        child.ended(code)

    def _zygote_ended(self, code: int) -> None:
        if self._closed:
            return
        self._zygote_pid = 0
        if self._zygote is not None:
            self._zygote.drain()  # exits that it still reported
            self._zygote.close()
        if self._ready:
            _log.warning("zygote=died code=%d starts=%d", code, self.zygote_starts)
            self.start()
            return
        _log.error("zygote=failed code=%d", code)
        self._loop.call_later(_AGAIN_S, self.start)
        self._failed(code)


def _children_of(pid: int) -> list[int]:
    """Of its main thread, which has all of them; none where /proc counts by another namespace's numbers."""
    if Path("/proc/self").readlink().name != str(pid):
        return []
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name_of(pid: int) -> str:
    """ "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
