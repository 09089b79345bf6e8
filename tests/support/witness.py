"""What /proc shows of some processes: who lives, who holds which memory, what each has open."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

REGION, MANIFEST = "/memfd:ling-region", "/memfd:ling-manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One open memfd of ours."""

    name: str
    inode: int


def sessions(leaders: Iterable[int]) -> dict[int, str]:
    """Name by pid of every process alive in the sessions of these leaders, the leaders included."""
    wanted = set(leaders)
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            name, fields = _stat(int(folder.name))
            if name and int(fields[3]) in wanted:
                found[int(folder.name)] = name
    return found


def name_of(pid: int) -> str:
    """Its own name; "" when it is dead."""
    return _stat(pid)[0]


def _stat(pid: int) -> tuple[str, list[str]]:
    """Name and the fields after it (state, parent, group, session, ...); no name when it is dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", []
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return ("" if fields[0] in "ZX" else name), fields


def children(pid: int) -> list[int]:
    """All processes below it that live, by generation."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(text) for text in (task / "children").read_text().split()]
    alive = [each for each in found if name_of(each)]
    return alive + [below for each in alive for below in children(each)]


def descriptors(pid: int) -> dict[int, str]:
    """What each descriptor is; {} when the process is dead."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = str(entry.readlink())
    return found


def kinds(pid: int) -> Counter[str]:
    """How many descriptors of each kind; sockets, pipes and memfds each count as one kind."""
    return Counter(text.partition(":[" if "anon_inode" not in text else "\0")[0] for text in descriptors(pid).values())


def memory(pid: int, *names: str) -> list[Memory]:
    """Its open memfds with those names, one entry for each descriptor."""
    found = []
    for fd, text in descriptors(pid).items():
        name = next((each for each in names or (REGION, MANIFEST) if text.startswith(each)), None)
        if name is not None:
            with contextlib.suppress(OSError):
                found.append(Memory(name=name, inode=Path(f"/proc/{pid}/fd/{fd}").stat().st_ino))
    return found


def strangers(inodes: Iterable[int]) -> dict[int, str]:
    """Processes, whoever's, that have one of these memfds open."""
    wanted = set(inodes)
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and any(each.inode in wanted for each in memory(int(folder.name))):
            found[int(folder.name)] = name_of(int(folder.name))
    return found


def callers(path: Path) -> int:
    """Connections to a Unix socket that its owner has accepted and not closed."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(row[-1] == str(path) and row[5] == "03" for row in rows)


def kill(pids: Iterable[int], seconds: float = 60.0) -> None:
    """SIGKILL to all of them at once; returns when the kernel says that all are dead."""
    fds = [os.pidfd_open(pid) for pid in pids]
    try:
        for fd in fds:
            with contextlib.suppress(ProcessLookupError):  # killed by the death of another
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        for fd in fds:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000), "SIGKILL did not kill"
    finally:
        for fd in fds:
            os.close(fd)
