"""A slot without an agent: one process fills weight sets through SGLang's own load path, another attaches them.

Runs in SGLang's environment. In both `--load-format private` leads SGLang's model runner to our loader; only the desk
and the agent behind it are played here: sets go from process to process over a Unix socket, descriptors and manifest.
"""

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.support import twins

from ling_api import checks, fdpass
from ling_api.identity import Identity
from ling_api.manifest import Manifest
from ling_api.memory import memfd
from ling_engine.cohort import Attached
from ling_engine.sglang import ranks, seat
from ling_engine.sglang.desk import Desk
from ling_engine.sglang.twin import ModelTwin

ROLES = ("target", "nextn", "dspark")
type Change = Callable[[Manifest, list[int]], tuple[Manifest, list[int]]]


@dataclass(slots=True)
class Filler:
    """In the place of a rank's side: fills every set that the loader asks for."""

    sets: dict[str, twins.FilledSet] = field(default_factory=dict)

    def attach(self, role: str, twin: ModelTwin, identity: Identity, _memory: Any) -> Attached:
        self.sets[role] = filled = twins.fill(twin)
        return Attached(manifest=filled.manifest, mapping=filled.mapping, filled=True)

    def failed(self, _code: int, _reason: str) -> None:
        """The process ends by itself."""

    def serve(self, path: Path) -> NoReturn:
        """Hands its sets to whoever connects and names one, until somebody ends this process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen()
            while True:
                connection, _ = listener.accept()
                with connection:
                    self._hand(connection, self.sets[connection.recv(64).decode()])

    @staticmethod
    def _hand(connection: socket.socket, filled: twins.FilledSet) -> None:
        raw = filled.manifest.to_bytes()
        readers = [memfd.reader(fd) for fd in filled.fds]
        socket.send_fds(connection, [struct.pack("<I", len(raw))], readers)
        connection.sendall(raw)
        fdpass.close_all(readers)


@dataclass(slots=True)
class Attacher:
    """In the place of a rank's side: maps what the filler has. `change` stands for damage on the way."""

    path: Path
    change: Change = lambda manifest, fds: (manifest, fds)

    def attach(self, role: str, twin: ModelTwin, _identity: Identity, _memory: Any) -> Attached:
        manifest, fds = self.change(*self._fetch(role))
        mapping = twins.MEMORY.map(fds, [region.size for region in manifest.regions], writable=False)
        fdpass.close_all(fds)
        twin.attach(mapping, manifest)
        checks.verify(mapping, manifest)
        return Attached(manifest=manifest, mapping=mapping, filled=False)

    def failed(self, _code: int, _reason: str) -> None:
        """The process ends by itself."""

    def _fetch(self, role: str) -> tuple[Manifest, list[int]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.path))
            connection.send(role.encode())
            head, fds, _, _ = socket.recv_fds(connection, 4, 64)
            (size,) = struct.unpack("<I", head)
            raw = b""
            while len(raw) < size:
                raw += connection.recv(size - len(raw))
        return Manifest.from_bytes(raw), list(fds)


def seat_with(side: Filler | Attacher) -> None:
    """Makes this process a rank whose loader meets `side`."""
    identities = {(role, 0): Identity.of(role, {"model": "test"}) for role in ROLES}
    seat.prepare(
        seat.Seat(
            run_dir=Path("/nowhere"), server="test", identities=identities, revision="", memory="memfd", desk=Desk(1)
        )
    )
    ranks._sides[0] = side


def flipped(fd: int, at: int) -> int:
    """A sealed memfd like this one, one bit of byte `at` turned."""
    size = os.fstat(fd).st_size
    raw = bytearray(os.pread(fd, size, 0))
    raw[at] ^= 1
    copy = os.memfd_create("flipped", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(copy, raw)
    memfd.seal(copy)
    return copy
