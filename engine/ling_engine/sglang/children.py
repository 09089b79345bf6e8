"""SGLang's processes as forks of the server: what each does first, and how the server sees one die.

A fork inherits every descriptor. A child that kept the server's sockets would hold client connections open after the
server has passed them on, and its event loop would answer to the server's; so it lets go of them before anything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import guards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ling_engine.pulse import Pulses

_log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_LAST_WORDS_S = 0.03  # for the event loop to say why, before the server ends
_ENDED_S = 0.5
_LET_GO = ("socket:", "anon_inode:[eventpoll]", "anon_inode:[pidfd]")
RANK_DIED = 1  # exit code of a server that lost a process and had no time to say more


def enter(parent: int, keep: Iterable[int]) -> None:
    """First in every child: it dies with the server, and holds nothing of it but the descriptors in `keep`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(RANK_DIED)
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    let_go(frozenset(keep))


def let_go(keep: frozenset[int]) -> None:
    """Replaces inherited sockets and event queues by /dev/null: a number that an object of the server's still has, and
    may close when it is collected, must not become a descriptor of this process."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for path in list(Path("/proc/self/fd").iterdir()):
        number = int(path.name)
        if number <= 2 or number in keep:
            continue
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            if str(path.readlink()).startswith(_LET_GO):
                os.dup2(null, number, inheritable=False)
    os.close(null)


class Pipe:
    """What a rank sends to its server when it is ready; notes which modules it had to import itself."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._known = frozenset(sys.modules)

    def send(self, info: Any) -> None:
        late = sorted(set(sys.modules) - self._known)
        if late:
            _log.info("rank=ready late_modules=%d names=%s", len(late), ",".join(late))
        self._writer.send(info)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def rank(run: Callable[..., None], parent: int, keep: frozenset[int], pulses: Pulses) -> Callable[..., None]:
    """SGLang's entry of a scheduler process, in a fork of ours."""

    def entry(*args: Any, **kwargs: Any) -> None:
        enter(parent, keep)
        if not pulses.take():
            _log.warning("rank=without-pulse pulses=%d", pulses.count)
        guards.release()
        args = tuple(Pipe(one) if hasattr(one, "send") and hasattr(one, "fileno") else one for one in args)
        run(*args, **kwargs)

    return entry


def other(run: Callable[..., None], parent: int) -> Callable[..., None]:
    """SGLang's entry of any process that does not compute."""

    def entry(*args: Any, **kwargs: Any) -> None:
        enter(parent, ())
        run(*args, **kwargs)

    return entry


class Watch:
    """Sees any child's death within milliseconds, whatever the event loop is busy with, and ends the server.

    `died(name)` is called in a watching thread; a moment later the process ends, and with it all other children. A
    rank's pulse stops before the kernel tears its memory down, which takes longer than all that is done here: the
    server's own end then runs beside it, not after it.
    """

    def __init__(self, children: dict[str, int], died: Callable[[str], None], pulses: Pulses) -> None:
        self._names = {os.pidfd_open(pid): name for name, pid in children.items()}
        self._by_pid = {pid: name for name, pid in children.items()}
        self._died = died
        self._pulses = pulses
        self._closing = threading.Event()
        self._first = threading.Lock()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        for at in range(pulses.count):
            threading.Thread(target=self._feel, args=(at,), name=f"pulse-{at}", daemon=True).start()

    def close(self, *, waits: bool = True) -> None:
        """Kills them all; `waits` a moment until they are gone: their memory is then free."""
        self._closing.set()
        for pidfd in self._names:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        waiting = select.poll()
        for pidfd in self._names if waits else ():
            waiting.register(pidfd, select.POLLIN)
            waiting.poll(_ENDED_S * 1000)
            waiting.unregister(pidfd)

    def _watch(self) -> None:
        poll = select.poll()
        for pidfd in self._names:
            poll.register(pidfd, select.POLLIN)
        (pidfd, _), *_rest = poll.poll()
        self._end(self._names[pidfd])

    def _feel(self, at: int) -> None:
        pid = self._pulses.owner_gone(at, lambda: not self._closing.is_set())
        if pid:
            self._end(self._by_pid.get(pid, f"process {pid}"))

    def _end(self, name: str) -> None:
        """By the first thread that sees a death."""
        if self._closing.is_set() or not self._first.acquire(blocking=False):
            return
        self._died(name)
        if not self._closing.wait(_LAST_WORDS_S):
            os._exit(RANK_DIED)
