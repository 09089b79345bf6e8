"""The server's desk for its ranks: one socket pair per rank, made before the fork; the cohort attaches as one.

A rank asks for one role's weight set. When all ranks have asked for that role, the agent is asked once for all their
sets, and each rank gets its ticket. A rank whose ticket was declined, or whose agent went away, asks again for itself.
A rank that fails says so with its exit code; one that dies is seen by its pidfd: either ends the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ling_api import fdpass
from ling_api.errors import (
    AgentUnreachable,
    AttachCheckFailed,
    BadInput,
    CheckpointChanged,
    DeviceError,
    FillFailed,
    LingError,
    PluginMissing,
    Refused,
)
from ling_engine.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from ling_engine.cohort import Answer

_log = logging.getLogger(__name__)
_ERRORS: Final[Mapping[int, type[LingError]]] = {
    one.exit_code: one
    for one in (BadInput, Refused, AgentUnreachable, AttachCheckFailed, DeviceError, FillFailed, CheckpointChanged)
}


class RankDied(LingError):
    """A rank's process ended without a word. The server ends: its other ranks wait for each other for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAttached:
    """What one rank has of one role; `milliseconds` by step, from the rank's first ask on."""

    set: str
    nbytes: int
    filled: bool
    milliseconds: dict[str, float]


@dataclass(slots=True)
class _Waiting:
    """The first asks of one role, until all ranks are there: rank -> (re, set)."""

    asks: dict[int, tuple[int, str]] = field(default_factory=dict)


class Desk:
    """Made before the ranks are forked; `serve` runs on the server's loop for as long as the server lives.

    In a rank: `place(rank)` gives its end and closes all others.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.attached: dict[tuple[str, int], RankAttached] = {}  # (role, rank)
        self.pids: dict[int, int] = {}  # rank -> pid, once it has said hello
        self._pairs = [socket.socketpair() for _ in range(ranks)]
        self._channels: dict[int, Channel] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._progress: dict[int, float] = {}
        self._pidfds: list[int] = []
        self._news = asyncio.Event()  # something was attached
        self._tasks: set[asyncio.Task[None]] = set()

    def filenos(self) -> frozenset[int]:
        """All ends, before `serve`: what a rank must not lose with the server's other sockets."""
        return frozenset(end.fileno() for pair in self._pairs for end in pair)

    def end_of(self, rank: int) -> int:
        """The descriptor of that rank's end, before `serve`."""
        return self._pairs[rank][1].fileno()

    def place(self, rank: int) -> socket.socket:
        """Called in the forked rank: its end of the pair; every other end is closed here."""
        mine = self._pairs[rank][1]
        for ours, theirs in self._pairs:
            ours.close()
            if theirs is not mine:
                theirs.close()
        return mine

    async def serve(
        self,
        ask: Callable[[list[str]], Awaitable[Answer]],
        tell: Callable[[str, str], None],
        progress: Callable[[float], None],
    ) -> None:
        """Until cancelled. `ask(sets)` gives the agent's final answer; `tell(role, step)` gets each step once, when
        the first rank begins it (`filling`) or the last has done it (all others); `progress(0..1)` of the fill.

        Raises the error of a rank that failed (its class by exit code), RankDied, and what `ask` raises but Refused,
        which the ranks are told and come back with.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        steps = _Steps(self.ranks, tell)
        try:
            for rank, (ours, theirs) in enumerate(self._pairs):
                theirs.close()
                self._channels[rank] = self._open(rank, ours, over, ask=ask, steps=steps, progress=progress)
            await over
        finally:
            self._close()

    async def complete(self, roles: Sequence[str]) -> None:
        """Until every rank has attached every role."""
        while not self.has_all(roles):
            self._news.clear()
            await self._news.wait()

    def has_all(self, roles: Iterable[str]) -> bool:
        """Whether every rank has attached every role."""
        return not self._missing(roles)

    def require(self, roles: Iterable[str]) -> None:
        """Raises PluginMissing unless every rank has attached every role: else it serves weights from elsewhere."""
        missing = self._missing(roles)
        if missing:
            role, rank = missing[0]
            raise PluginMissing(
                f"rank {rank} came up without the {role} weights of its slot: the plug-in ling did not load them; "
                "see that the engine image has the package ling installed with its entry points"
            )

    def _missing(self, roles: Iterable[str]) -> list[tuple[str, int]]:
        return [(role, rank) for role in roles for rank in range(self.ranks) if (role, rank) not in self.attached]

    def _open(
        self,
        rank: int,
        sock: socket.socket,
        over: asyncio.Future[None],
        *,
        ask: Callable[[list[str]], Awaitable[Answer]],
        steps: _Steps,
        progress: Callable[[float], None],
    ) -> Channel:
        def frame(message: dict[str, Any], fds: list[int]) -> None:
            fdpass.close_all(fds)
            match message["op"]:
                case "hello":
                    self._watch(rank, message["pid"], over)
                case "ask":
                    self._ask(rank, message, ask, over)
                case "step":
                    steps.said(rank, message["role"], message["step"])
                case "progress":
                    self._progress[rank] = message["value"]
                    progress(sum(self._progress.values()) / self.ranks)
                case "attached":
                    self._have(rank, message)
                case "failed":
                    _fail(over, error_of(message["code"], f"rank {rank}: {message['reason']}"))

        return Channel(sock, frame, lambda: _log.info("rank=%d desk=closed", rank))

    def _watch(self, rank: int, pid: int, over: asyncio.Future[None]) -> None:
        self.pids[rank] = pid
        pidfd = os.pidfd_open(pid)
        self._pidfds.append(pidfd)

        def died() -> None:
            asyncio.get_running_loop().remove_reader(pidfd)
            self._channels[rank].drain()  # its last words come first
            _fail(over, RankDied(f"rank {rank} (pid {pid}) died"))

        asyncio.get_running_loop().add_reader(pidfd, died)

    def _ask(
        self,
        rank: int,
        message: dict[str, Any],
        ask: Callable[[list[str]], Awaitable[Answer]],
        over: asyncio.Future[None],
    ) -> None:
        asks = {rank: (message["re"], message["set"])}
        if not message["again"]:
            waiting = self._waiting.setdefault(message["role"], _Waiting())
            waiting.asks |= asks
            if len(waiting.asks) < self.ranks:
                return
            asks = self._waiting.pop(message["role"]).asks
        task = asyncio.get_running_loop().create_task(self._answer(asks, ask))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                _fail(over, error)

        task.add_done_callback(ended)

    async def _answer(self, asks: dict[int, tuple[int, str]], ask: Callable[[list[str]], Awaitable[Answer]]) -> None:
        try:
            answer = await ask([name for _, (_, name) in sorted(asks.items())])
        except Refused as error:
            fields = [[one.field, one.wanted, one.held] for one in error.fields]
            for rank, (re, _) in asks.items():
                self._channels[rank].put({"op": "refused", "re": re, "reason": str(error), "fields": fields})
            return
        for rank, (re, name) in asks.items():
            granted = {name: answer.granted[name]} if name in answer.granted else {}
            tickets = {name: answer.tickets[name]} if name in answer.tickets else {}
            self._channels[rank].put({"op": "answer", "re": re, "granted": granted, "tickets": tickets})

    def _have(self, rank: int, message: dict[str, Any]) -> None:
        self.attached[message["role"], rank] = RankAttached(
            set=message["set"],
            nbytes=message["nbytes"],
            filled=message["filled"],
            milliseconds=message["milliseconds"],
        )
        self._news.set()

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        for task in self._tasks:
            task.cancel()
        for pidfd in self._pidfds:
            loop.remove_reader(pidfd)
        fdpass.close_all(self._pidfds)
        for channel in self._channels.values():
            channel.close()


class _Steps:
    """A cohort's steps: `filling` when the first rank says so, any other when the last has said it; each once."""

    def __init__(self, ranks: int, tell: Callable[[str, str], None]) -> None:
        self._ranks = ranks
        self._tell = tell
        self._said: dict[tuple[str, str], set[int]] = {}

    def said(self, rank: int, role: str, step: str) -> None:
        by = self._said.setdefault((role, step), set())
        known = len(by)
        by.add(rank)
        if len(by) > known and len(by) == (1 if step == "filling" else self._ranks):
            self._tell(role, step)


def error_of(code: int, reason: str) -> LingError:
    """The error of ling_api.errors with that exit code, or RankDied for any other code."""
    return _ERRORS.get(code, RankDied)(reason)


def _fail(over: asyncio.Future[None], error: BaseException) -> None:
    if not over.done():
        over.set_exception(error)
