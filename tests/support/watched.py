"""Runtimes whose servers write down what they do, and stop where a test wants them.

`--runtime tests.support.watched:X`, where X is STANDIN or REFERENCE. Events go to the file LING_JOURNAL: `open`,
`fill`, `filled`, `attached`, and `two-fillers` when a server begins to fill while another, alive, is not done with the
same set: a lock says so, which the kernel takes from the dead. Gates as in tests.support.standin: open, bind, load
(after half of the bytes), warm-up.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.standin import gate

from ling_engine import runtimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp

    from ling_api.manifest import Layout, TensorSpec
    from ling_api.memory.base import Mapping
    from ling_engine.runtime import Description, ModelSettings, Runtime, ServedModel, WeightTwin


def note(event: str) -> None:
    """One line; appended as a whole."""
    pid = Path("/proc/self").readlink().name  # as the test sees it, whatever the PID namespace
    line = json.dumps({"event": event, "pid": int(pid)}) + "\n"
    fd = os.open(os.environ["LING_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Twin:
    """A weight set's other half, watched."""

    def __init__(self, inner: WeightTwin) -> None:
        self._inner = inner
        self.role, self.rank = inner.role, inner.rank
        self._lock: int | None = None

    def specs(self) -> Sequence[TensorSpec]:
        return self._inner.specs()

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        gate("bind")
        self._inner.bind(mapping, layout)
        if mapping.buffer(0, 1).readonly:
            note("attached")

    def load(self, progress: Callable[[float], None]) -> str:
        self._begin()
        held = False

        def progressed(done: float) -> None:
            nonlocal held
            progress(done)
            if done >= 0.5 and not held:
                held = True
                gate("load")

        content = self._inner.load(progressed)
        note("filled")
        return content

    def _begin(self) -> None:
        self._lock = os.open(f"{os.environ['LING_JOURNAL']}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("two-fillers")
        note("fill")

    def done(self) -> None:
        """The set is sealed, or was so already."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Model:
    """A server's model, watched."""

    def __init__(self, inner: ServedModel) -> None:
        self._inner = inner
        self.twins = [Twin(each) for each in inner.twins]

    def warm_up(self) -> None:
        for twin in self.twins:
            twin.done()
        gate("warm-up")
        self._inner.warm_up()

    def prove(self) -> None:
        self._inner.prove()

    def app(self) -> ASGIApp:
        return self._inner.app()


class Watched:
    """A runtime, watched."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self.name = f"watched {runtime}"
        self.native_threads = False

    def preload(self, settings: ModelSettings) -> None:
        self._inner().preload(settings)

    def _inner(self) -> Runtime:
        return runtimes.find(self._runtime)

    def describe(self, settings: ModelSettings) -> Description:
        return self._inner().describe(settings)

    def open(self, settings: ModelSettings) -> Any:
        note("open")
        gate("open")
        return Model(self._inner().open(settings))


STANDIN = Watched("tests.support.standin:RUNTIME")
REFERENCE = Watched("reference")
