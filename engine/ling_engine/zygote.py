"""The zygote: has imported the whole runtime and forks servers on the launcher's word.

`python -m ling_engine.zygote SETTINGS` with its control socket as descriptor 3. It holds no descriptor of any weight
or listener, has one thread, touches no device. Its servers outlive it: the launcher adopts them.
"""

from __future__ import annotations

import gc

gc.disable()  # nothing that is imported here is ever collected; freeze() below keeps it out of every collection

import contextlib  # noqa: E402
import ctypes  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from ling_api import fdpass  # noqa: E402
from ling_api.errors import BadInput, LingError  # noqa: E402

from . import child, logs, runtimes  # noqa: E402
from .runtime import CompilingRuntime  # noqa: E402
from .settings import EngineSettings  # noqa: E402

if TYPE_CHECKING:
    from .runtime import Runtime

CONTROL_FD = 3
_PR_SET_NAME = 15
_log = logging.getLogger("ling_engine.zygote")


def main() -> int:
    """Runs until the launcher is gone. Returns the exit code of the errors in ling_api."""
    logs.set_up("zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = EngineSettings.from_json(sys.argv[1])
    _name_process("ling-zygote")
    _close_inherited({0, 1, 2, CONTROL_FD})
    control = socket.socket(fileno=CONTROL_FD)
    began = time.monotonic()
    try:
        runtime = runtimes.find(settings.runtime)
        _name_kernels(control, runtime, settings)
        runtime.preload(settings.model_settings())
        _insist_on_one_thread(runtime)
    except LingError as error:
        print(f"ling-engine: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    gc.collect()
    gc.freeze()
    milliseconds = (time.monotonic() - began) * 1000
    _log.info("zygote=ready runtime=%s import_ms=%.0f modules=%d", runtime.name, milliseconds, len(sys.modules))
    fdpass.send(control, {"op": "ready", "ms": milliseconds})
    _Forks(control, settings, runtime).serve()
    return 0


def _name_kernels(control: socket.socket, runtime: Runtime, settings: EngineSettings) -> None:
    """First of all: the launcher fetches them while this process imports, which takes longer."""
    if isinstance(runtime, CompilingRuntime):
        fdpass.send(control, {"op": "kernels", "key": runtime.kernels(settings.model_settings())})


class _Forks:
    """Forks on request; reports every exit. Single-threaded: one poll over the launcher and the children's pidfds."""

    def __init__(self, control: socket.socket, settings: EngineSettings, runtime: Runtime) -> None:
        self._control = control
        self._reader = fdpass.Reader(control)
        self._settings = settings
        self._runtime = runtime
        self._pids: dict[int, int] = {}  # pidfd -> pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd != CONTROL_FD:
                    self._reap(fd)
                elif not self._read():
                    return

    def _read(self) -> bool:
        """False: the launcher is gone."""
        try:
            frames = self._reader.read()
        except (OSError, fdpass.ProtocolError):
            return False
        for message, fds in frames:
            self._fork(message["entry"], fds[0], message.get("server", ""))
            os.close(fds[0])
        return True

    def _fork(self, entry: str, fd: int, server: str) -> None:
        pid = os.fork()
        if pid == 0:
            _become_child(entry, fd)
            # os._exit: nothing of the zygote's may run at exit. This frame keeps the zygote's objects alive until
            # then, so that none of them closes a descriptor number that has another meaning in this process, and the
            # control socket, whose end tells the launcher that this process is dead.
            control = socket.socket(fileno=fd)
            os._exit(child.run(entry, control, self._settings, self._runtime, server))
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> None:
        pid = self._pids.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # the launcher is gone: its end is read next
            fdpass.send(self._control, {"op": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _become_child(entry: str, fd: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT}:
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    gc.enable()
    _close_inherited({0, 1, 2, fd})
    _name_process("ling-server" if entry == "serve" else "ling-check")


def _close_inherited(keep: set[int]) -> None:
    numbers = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    fdpass.close_all(numbers - keep)


def _name_process(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _insist_on_one_thread(runtime: Runtime) -> None:
    """A fork copies one thread only; whatever lock another one holds would stay locked in every server."""
    main = int(Path("/proc/self").readlink().name)  # by the numbers of /proc, which may be another namespace's
    others = sorted(name for thread, name in _threads() if thread != main)
    if threading.active_count() != 1 or (others and not runtime.native_threads):
        raise BadInput(
            f"--runtime {runtime.name}: its preload() left threads beside the main one ({', '.join(others)}); "
            "a zygote must have one"
        )
    if others:
        _log.info("zygote=threads native=%s", ",".join(others))


def _threads() -> list[tuple[int, str]]:
    return [(int(path.name), (path / "comm").read_text().strip()) for path in Path("/proc/self/task").iterdir()]


if __name__ == "__main__":
    sys.exit(main())
