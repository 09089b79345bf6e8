"""What a fork of the server lets go of, and how the server sees one die. Real forks, of this small process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ling_engine.pulse import Pulses
from ling_engine.sglang import children

if TYPE_CHECKING:
    from collections.abc import Callable

_EXIT_THREAD = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


def forked(run: Callable[[], int]) -> int:
    """The exit code of `run` in a child; 99 for an exception."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(run())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kind(number: int) -> str:
    return str(Path(f"/proc/self/fd/{number}").readlink()).split(":")[0]


def test_a_child_keeps_no_socket_but_those_it_needs_and_no_number_changes_its_meaning() -> None:
    ours, theirs = socket.socketpair()
    kept, _other = socket.socketpair()
    reader, writer = os.pipe()
    loop = asyncio.SelectorEventLoop()
    queue = loop._selector.fileno()  # type: ignore[attr-defined]

    def child() -> int:
        children.enter(os.getppid(), {kept.fileno()})
        kinds = [kind(one) for one in (ours.fileno(), theirs.fileno(), queue, kept.fileno(), reader)]
        return int(kinds != ["/dev/null", "/dev/null", "/dev/null", "socket", "pipe"])

    assert forked(child) == 0
    ours.send(b"x")
    assert theirs.recv(1) == b"x", "the parent's are untouched"
    loop.close()
    for one in (ours, theirs, kept, _other):
        one.close()
    os.close(reader)
    os.close(writer)


def test_a_child_whose_server_is_gone_already_does_not_stay() -> None:
    def child() -> int:
        children.enter(1 if os.getppid() != 1 else 2, ())
        return 0

    assert forked(child) == children.RANK_DIED


def test_a_child_dies_with_its_server() -> None:
    reader, writer = os.pipe()

    def server() -> int:
        me = os.getpid()
        if os.fork() == 0:
            children.enter(me, ())
            os.write(writer, b"%d\n" % os.getpid())
            signal.pause()
            os._exit(0)
        os.read(reader, 0)
        with open(f"/proc/self/fd/{reader}") as lines:
            os.environ["CHILD"] = lines.readline()
        os.write(writer, os.environ["CHILD"].encode())
        os.kill(me, signal.SIGKILL)
        return 0

    assert forked(server) == -signal.SIGKILL
    orphan = int(os.read(reader, 64).split()[0])
    deadline = time.monotonic() + 30
    while alive(orphan) and time.monotonic() < deadline:
        select.select([], [], [], 0.005)
    assert not alive(orphan)
    os.close(reader)
    os.close(writer)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("said", [True, False], ids=["the loop says why", "the loop is stuck"])
def test_a_server_ends_with_its_first_dead_child(said: bool) -> None:
    def server() -> int:
        sleepers = {f"rank {number}": sleeper() for number in range(2)}
        watch: list[children.Watch] = []

        def died(name: str) -> None:
            if said:
                watch[0].close()
                os._exit(7 if name == "rank 1" else 8)

        watch.append(children.Watch(sleepers, died, Pulses(2)))
        os.kill(sleepers["rank 1"], signal.SIGKILL)
        signal.pause()
        return 0

    assert forked(server) == (7 if said else children.RANK_DIED)


def sleeper() -> int:
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        children.enter(me, ())
        signal.pause()
        os._exit(0)
    return pid


def test_closing_kills_all_and_is_no_death() -> None:
    def server() -> int:
        pids = {"rank 0": sleeper(), "detokenizer": sleeper()}
        watch = children.Watch(pids, lambda _: os._exit(9), Pulses(1))
        watch.close()
        return sum(alive(pid) for pid in pids.values())

    assert forked(server) == 0


@pytest.mark.parametrize("said", [True, False], ids=["the loop says why", "the loop is stuck"])
def test_a_rank_whose_memory_is_still_being_freed_is_dead(said: bool) -> None:
    """Its main thread has ended, which is what the kernel does first; the process is there for as long as we like."""

    def server() -> int:
        pulses = Pulses(2)
        pids = {"rank 0": sleeper(), "rank 1": dying(pulses)}
        pidfd = os.pidfd_open(pids["rank 1"])

        def died(name: str) -> None:
            if said:
                os._exit(7 if name == "rank 1" and not select.select([pidfd], [], [], 0)[0] else 8)

        children.Watch(pids, died, pulses)
        signal.alarm(60)
        signal.pause()
        return 0

    assert forked(server) == (7 if said else children.RANK_DIED)


def dying(pulses: Pulses) -> int:
    """A rank that SGLang's entry has begun in; a thread of it is all that is left."""
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        children.rank(_end_main_thread, me, frozenset(), pulses)()
        os._exit(0)
    return pid


def _end_main_thread() -> None:
    threading.Thread(target=signal.pause, daemon=True).start()
    ctypes.CDLL(None).syscall(_EXIT_THREAD, 0)


class NoPatience:
    """A poll that may be asked, but not be waited for."""

    def register(self, *_: object) -> None: ...
    def poll(self, *_: object) -> list[tuple[int, int]]:
        raise AssertionError("it waits")


def test_closing_without_waiting_kills_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children.Watch, "_watch", lambda _: None)
    pid = sleeper()
    watch = children.Watch({"detokenizer": pid}, lambda _: None, Pulses(1))
    monkeypatch.setattr(children.select, "poll", NoPatience)
    watch.close(waits=False)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
