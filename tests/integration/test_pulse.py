"""The page that tells of a death before its memory is free, with a process that has much of it."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ling_api import fdpass
from ling_engine.pulse import Pulse
from ling_nodeagent.pulses import MOST, PAGE, Pulses

if TYPE_CHECKING:
    from collections.abc import Callable

MUCH = 512 << 20


def child(work: Callable[[], None]) -> tuple[int, int]:
    """A process that holds a pulse and has done that work; its pid and the page."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            pulse = Pulse()
            work()
            os.set_inheritable(pulse.fd, True)
            os.write(theirs, str(pulse.fd).encode())
            time.sleep(120)
        finally:
            os._exit(1)  # whatever happens: no second run of the tests goes on from here
    os.close(theirs)
    number = int(os.read(ours, 16))
    os.close(ours)
    return pid, os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)


def touch() -> None:
    memory = mmap.mmap(-1, MUCH)
    for at in range(0, MUCH, 4096):
        memory[at] = 1
    globals()["kept"] = memory


async def test_the_hint_comes_long_before_the_pidfd() -> None:
    hints: list[float] = []
    pulses = Pulses(lambda key: hints.append(time.monotonic()))
    pid, page = child(touch)
    pidfd = os.pidfd_open(pid)
    dead = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, dead.set)
    pulses.watch(1, page)
    await asyncio.sleep(0.05)
    assert hints == []
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await dead.wait()
        died = time.monotonic()
        while not hints:
            await asyncio.sleep(0.001)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    os.waitpid(pid, 0)
    assert hints[0] < died, "the kernel lets the mutex go first, then tears the memory down"
    assert len(pulses) == 0


async def test_who_is_forgotten_is_not_told_of() -> None:
    hints: list[int] = []
    pulses = Pulses(hints.append)
    pid, page = child(lambda: None)
    pulses.watch(1, page)
    pulses.forget(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    await asyncio.sleep(0.1)
    assert hints == []


def page_of_nobody() -> int:
    """A page as it must be; no mutex is in it."""
    fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:page")


async def test_a_second_page_of_a_connection_is_refused_and_costs_nothing() -> None:
    pulses = Pulses(lambda key: None)
    pulses.watch(1, page_of_nobody(), "d001")
    again = page_of_nobody()
    with pytest.raises(fdpass.ProtocolError, match="already"):
        pulses.watch(1, again, "d001")
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(again)
    assert (len(pulses), pulses.live("d001")) == (1, 1)
    pulses.close()


async def test_a_folder_that_reconnects_without_end_has_so_many_threads_and_no_more() -> None:
    before = set(threading.enumerate())  # of tests before this one, some of them about to end
    pulses = Pulses(lambda key: None)
    for key in range(4 * MOST):
        pulses.watch(key, page_of_nobody(), "d001")
        pulses.forget(key)
    threads = [each for each in threading.enumerate() if each not in before and each.name.startswith("pulse-")]
    assert pulses.live("d001") == MOST, "a thread that nobody needs counts until it has ended"
    assert len(threads) <= MOST
    pulses.watch(-1, page_of_nobody(), "d002")
    assert pulses.live("d002") == 1, "another folder has its own"
    pulses.close()
    async with asyncio.timeout(60):
        while pulses.live("d001"):
            await asyncio.sleep(0.05)
    pulses.watch(1, page_of_nobody(), "d001")
    assert pulses.live("d001") == 1, "room again"
    pulses.close()


async def test_without_a_thread_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = mapped()
    pulses = Pulses(lambda key: None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pulses.watch(1, page_of_nobody(), "d001")
    monkeypatch.undo()
    assert (len(pulses), pulses.live("d001")) == (0, 0)
    assert mapped() <= before


@pytest.mark.parametrize("wrong", ["unsealed", "small", "a pipe"])
async def test_a_page_that_could_shrink_under_us_is_refused(wrong: str) -> None:
    if wrong == "a pipe":
        fd, other = os.pipe()
        os.close(other)
    else:
        fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, PAGE if wrong == "unsealed" else 16)
        if wrong == "small":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(fdpass.ProtocolError, match="pulse"):
        Pulses(lambda key: None).watch(1, fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
