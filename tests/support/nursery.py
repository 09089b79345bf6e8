"""Starts many of our programs for the price of importing them once: a process that has imported all and forks.

A child is the leader of a session of its own, has nothing open but its log, and runs the program's `main`. With
`namespace` it is PID 1 of a PID namespace, below a process that only waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import PYTHONPATH, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# a program's name -> its module; any other name is the module itself
MAINS = {
    "ling_nodeagent": "ling_nodeagent.__main__",
    "ling_nodeagent.keeper": "ling_nodeagent.keeper",
    "ling_engine": "ling_engine.__main__",
}
IMPORTED = ("ling_nodeagent.serve", "ling_engine.launcher", *MAINS.values())
_PR_SET_PDEATHSIG = 1


class Nursery:
    """The forking process, seen from the test; its children die with it, and it with the test.

    With `imported` it has imported those modules instead of our programs', and may be another Python.
    """

    def __init__(
        self, *imported: str, python: str | Path = sys.executable, env: Mapping[str, str] | None = None
    ) -> None:
        env = {**os.environ, "PYTHONPATH": f"{PYTHONPATH}{os.pathsep}{ROOT}", **(env or {})}
        self._lock = threading.Lock()
        argv = [str(python), "-m", "tests.support.nursery", *imported]
        self._child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.namespaces = bool(self._line()["namespaces"])

    def _line(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, "the nursery ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _call(self, **request: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        with self._lock:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            return self._line()

    def start(
        self, program: str, argv: Sequence[str], env: Mapping[str, str], log: Path, *, namespace: bool = False
    ) -> int:
        """The pid of the session's leader."""
        request = {"program": program, "argv": list(argv), "env": dict(env), "log": str(log), "namespace": namespace}
        return int(self._call(**request)["pid"])

    def reap(self, pid: int, seconds: float) -> int:
        """Waits for a child's end; its exit code, that of a signal as a shell says it. Raises AssertionError."""
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                assert poll.poll(seconds * 1000), f"process {pid} has not ended in {seconds} s"
            finally:
                os.close(fd)
        return int(self._call(reap=pid)["code"])

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()


def main() -> None:
    """The nursery: one JSON object a line in, one out."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what modules print while they are imported is no answer
    for name in sys.argv[1:] or IMPORTED:
        importlib.import_module(name)
    os.dup2(answers, 1)
    os.close(answers)
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1 or sys.argv[1:], "a fork would copy one thread only"  # torch's own idle ones are not missed
    codes: dict[int, int] = {}
    print(json.dumps({"namespaces": _namespaces()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            pid = request["reap"]
            if pid not in codes:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                codes[pid] = code if code >= 0 else 128 - code
            print(json.dumps({"code": codes[pid]}), flush=True)
            continue
        pid = os.fork()
        if not pid:
            _become(**request)
        print(json.dumps({"pid": pid}), flush=True)


def _namespaces() -> bool:
    """Whether this process may make PID namespaces."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(OSError):
            os.unshare(os.CLONE_NEWPID)
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _become(*, program: str, argv: list[str], env: dict[str, str], log: str, namespace: bool) -> None:
    os.setsid()
    _die_with_parent()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number, source in enumerate((nothing, output, output)):
        os.dup2(source, number)
    os.closerange(3, 1 << 16)
    os.environ.update(env)
    if namespace:
        _wrap()
    code = 1
    try:
        code = int(importlib.import_module(MAINS.get(program, program)).main(tuple(argv)))
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wrap() -> None:
    """Returns in PID 1 of a new namespace, which dies with the process that waits for it here."""
    os.unshare(os.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    _die_with_parent()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
