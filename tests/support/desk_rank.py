"""A rank without torch: the real rank side over a set of two patterns, one of them in the tail. Run as a process.

`python -m tests.support.desk_rank DESK_FD RUN_DIR SERVER RANK NAME`; prints JSON lines, obeys the words on stdin.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ling_api.errors import AttachCheckFailed, LingError
from ling_api.identity import Identity
from ling_api.manifest import TensorEntry, TensorSpec
from ling_api.memory.memfd import MemfdMemory
from ling_engine.sglang.rank_side import RankSide
from ling_engine.sglang.seat import Seat

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_api.manifest import Layout, Manifest
    from ling_api.memory.base import Mapping

MIB = 1 << 20
_PR_SET_PDEATHSIG = 1
FORM = "a form"


def identity(name: str) -> Identity:
    return Identity.of("target", {"name": name})


class Patterns:
    """Two tensors of its rank's own bytes: `main`, and `late`, which loading makes."""

    role = "target"

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._mapping: Mapping | None = None

    def specs(self) -> list[TensorSpec]:
        return [TensorSpec("main", "uint8", (3 * MIB,), (1,))]

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        self._mapping = mapping

    def load(self, progress: Callable[[float], None]) -> str:
        self._write(0, 3 * MIB, b"main")
        say(loading=True)
        if "hold" in sys.argv:
            sys.stdin.readline()
        progress(1.0)
        return ""

    def tail(self, mapping: Mapping, layout: Layout) -> int:
        return MIB

    def settle(self, mapping: Mapping, start: int) -> tuple[tuple[TensorEntry, ...], str]:
        self._write(start, MIB, b"late")
        main = TensorEntry("main", "uint8", (3 * MIB,), (1,), 0, 3 * MIB)
        return (main, TensorEntry("late", "uint8", (MIB,), (1,), start, MIB)), FORM

    def attach(self, mapping: Mapping, manifest: Manifest) -> None:
        if manifest.form != FORM:
            raise AttachCheckFailed(f"the form is {manifest.form!r}")
        self._mapping = mapping
        for tensor in manifest.tensors:
            if bytes(mapping.buffer(tensor.offset, tensor.nbytes)) != self._bytes(tensor.nbytes, tensor.name.encode()):
                raise AttachCheckFailed(f"tensor {tensor.name} is another's")

    def _write(self, at: int, nbytes: int, word: bytes) -> None:
        assert self._mapping is not None
        self._mapping.buffer(at, nbytes)[:] = self._bytes(nbytes, word)

    def _bytes(self, nbytes: int, word: bytes) -> bytes:
        piece = word + self.rank.to_bytes(4, "big")
        return piece * (nbytes // len(piece))


class Given:
    """A desk whose end for this rank came along at the start."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)

    def place(self, _rank: int) -> socket.socket:
        return self._sock


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a test that is cut off leaves nothing behind
    fd, run_dir, server, rank, name = sys.argv[1:6]
    desk: Any = Given(int(fd))
    seat = Seat(
        run_dir=Path(run_dir),
        server=server,
        identities={("target", int(rank)): identity(name)},
        revision="",
        memory="memfd",
        desk=desk,
    )
    side = RankSide(seat, int(rank))
    try:
        attached = side.attach("target", Patterns(int(rank)), identity(name), MemfdMemory())
    except LingError as error:
        side.failed(error.exit_code, str(error))
        os._exit(1)
    say(filled=attached.filled, nbytes=attached.manifest.nbytes)
    for line in sys.stdin:
        code, _, reason = line.strip().partition(" ")
        side.failed(int(code), reason)
        os._exit(1)


if __name__ == "__main__":
    main()
