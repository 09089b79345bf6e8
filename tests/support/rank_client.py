"""A torch-free rank, as the node agent sees one, and weight sets made of a name.

`RankClient` is blocking, because a rank that is to die must be a process of its own: `RankProcess` runs one in a child
and forwards calls to it by JSON lines. No gRPC here: a child starts in a fraction of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import PYTHONPATH, ROOT

from ling_api import fdpass, messages
from ling_api.identity import Identity, set_id
from ling_api.manifest import Manifest, RegionEntry
from ling_api.memory.memfd import MemfdMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT = 60.0
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """A weight set made of a name: its identity, and bytes that can be told from any other's."""

    __test__ = False
    name: str
    role: str = "target"
    rank: int = 0
    nbytes: int = 4 * MIB
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity.of(self.role, {"name": self.name, **dict(self.fields)})

    @property
    def id(self) -> str:
        return set_id(self.identity.digest, self.rank)

    @property
    def content(self) -> bytes:
        return self.identity.digest.encode() * (self.nbytes // 64)

    def manifest(self, sizes: Sequence[int]) -> bytes:
        regions = tuple(RegionEntry(size=size, checksums=(0,) * -(-size // (4 * MIB))) for size in sizes)
        return Manifest(identity=self.identity, rank=self.rank, kind="memfd", tensors=(), regions=regions).to_bytes()


def memfd_of(data: bytes) -> int:
    fd = os.memfd_create("manifest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    return fd


class RankClient:
    """One rank's folder connection. Raises `RankError` on an `error` frame, ConnectionError at the end."""

    def __init__(self, folder: Path, server: str, rank: int = 0) -> None:
        self._begin(fdpass.connect(folder / "fd.sock", TIMEOUT), server, rank)

    @classmethod
    def over(cls, sock: socket.socket, server: str, rank: int = 0) -> RankClient:
        """On a connection that somebody else made."""
        client = cls.__new__(cls)
        client._begin(sock, server, rank)
        return client

    def _begin(self, sock: socket.socket, server: str, rank: int) -> None:
        self.sock = sock
        self.re = 0
        self.mapped: dict[str, list[int]] = {}
        self.filling: dict[str, tuple[list[int], list[int], Any]] = {}
        self.say({"op": "hello", "version": fdpass.VERSION, "kind": "rank", "server": server, "rank": rank})
        self.hear("welcome")

    def say(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        fdpass.send(self.sock, message, fds)

    def hear(self, op: str) -> tuple[dict[str, Any], list[int]]:
        message, fds = fdpass.receive(self.sock)
        messages.validate("agent->rank", message, len(fds))
        if message["op"] == "error":
            raise RankError(message["reason"])
        assert message["op"] == op, message
        return message, fds

    def ask(self, op: str, answer: str, fds: Sequence[int] = (), **fields: Any) -> tuple[dict[str, Any], list[int]]:
        self.re += 1
        self.say({"op": op, "re": self.re, **fields}, fds)
        message, got = self.hear(answer)
        assert message["re"] == self.re
        return message, got

    def fetch(self, ticket: str, *, say_mapped: bool = True) -> tuple[str, list[int], list[int]]:
        """Set id, region descriptors and sizes; the manifest is checked for its set id and closed."""
        message, fds = self.ask("fetch", "set", ticket=ticket)
        regions, sizes = fds[1:], list(message["sizes"])
        assert Manifest.from_bytes(os.pread(fds[0], 1 << 20, 0)).set_id == message["set"]
        os.close(fds[0])
        for _ in range(message["parts"] - 1):
            more, fds = self.hear("set")
            regions += fds
            sizes += more["sizes"]
        if say_mapped:
            self.say({"op": "mapped", "set": message["set"]})
        return message["set"], regions, sizes

    def read(self, ticket: str) -> str:
        """Fetches a set and tells its set id and first 64 bytes."""
        name, regions, _ = self.fetch(ticket)
        first = os.pread(regions[0], 64, 0).decode()
        fdpass.close_all(regions)
        return f"{name} {first}"

    def deposit(self, ticket: str, name: str, nbytes: int) -> None:
        """Makes two regions - or takes those made before - and deposits them; `stored` has come when it returns."""
        if name not in self.filling:
            memory = MemfdMemory()
            sizes = [nbytes // 2, nbytes - nbytes // 2]
            self.filling[name] = ([memory.create(size) for size in sizes], sizes, None)
        fds, sizes, _ = self.filling[name]
        shape = {"set": name, "kind": "memfd", "sizes": sizes, "part": 0, "parts": 1}
        self.ask("deposit", "stored", fds, ticket=ticket, **shape)

    def write(self, name: str, content: str) -> None:
        fds, sizes, _ = self.filling[name]
        for fd, size in zip(fds, sizes, strict=True):
            with mmap.mmap(fd, size) as region:
                region[:] = content.encode() * (size // len(content))

    def hold_writable(self, name: str) -> None:
        """Keeps a writable mapping: sealing must fail."""
        fds, sizes, _ = self.filling[name]
        self.filling[name] = (fds, sizes, mmap.mmap(fds[0], sizes[0]))

    def seal(self, name: str, manifest: str) -> None:
        fd = memfd_of(manifest.encode())
        try:
            self.ask("seal", "sealed", [fd], set=name)
        finally:
            os.close(fd)
        fds, _, _ = self.filling.pop(name)
        fdpass.close_all(fds)
        self.say({"op": "mapped", "set": name})

    def pass_pair(self) -> None:
        """Passes one end of a socket pair on, as if it were a client's idle connection."""
        ours, theirs = socket.socketpair()
        self.say({"op": "pass", "count": 1}, [theirs.fileno()])
        ours.close()
        theirs.close()

    def listener(self) -> int:
        message, fds = self.ask("listener", "listener")
        self.mapped["listener"] = fds
        return int(message["backlog"])

    def close(self) -> None:
        for fds in self.mapped.values():
            fdpass.close_all(fds)
        for fds, _, _ in self.filling.values():
            fdpass.close_all(fds)
        self.filling.clear()
        self.sock.close()


class RankError(Exception):
    """The agent answered `error`."""


class RankProcess:
    """A RankClient in a process of its own; `kill` is SIGKILL."""

    def __init__(self, folder: Path, server: str, rank: int = 0, *, module: str = "tests.support.rank_client") -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), server, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])},
        )
        assert self._line() == "ready"

    def call(self, method: str, *args: Any) -> Any:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps([method, *args]).encode() + b"\n")
        self.child.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise ConnectionError("the rank's process ended")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise RankError(answer["error"])
        return answer

    async def acall(self, method: str, *args: Any) -> Any:
        return await asyncio.to_thread(self.call, method, *args)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def run_rank(folder: str, server: str, rank: str, *, client: type[RankClient] | None = None) -> None:
    """The child of RankProcess."""
    one = (client or RankClient)(Path(folder), server, int(rank))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        method, *args = json.loads(line)
        try:
            answer = getattr(one, method)(*args)
        except RankError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_rank(*sys.argv[1:])
