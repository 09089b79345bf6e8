"""Child processes of tests: started with a log, ended for certain."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(str(ROOT / room) for room in ("operator", "nodeagent", "engine", "api"))
Child = subprocess.Popen[bytes]


def wait_for[T](look: Callable[[], T], what: str, seconds: float = 120.0) -> T:
    """The first truthy value of `look`; AssertionError with `what` after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def python(*args: str, env: Mapping[str, str], log: Path, wrap: tuple[str, ...] = ()) -> Iterator[Child]:
    """`python ARGS` of this environment while the block runs; its output goes to `log`. `wrap` goes before it."""
    argv = [*wrap, sys.executable, *args]
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv, env={**os.environ, "PYTHONPATH": PYTHONPATH, **env}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
