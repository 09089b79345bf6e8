"""A real agent process with a real keeper, two slots, many engine pods: for those who try to get what is not theirs.

d000 is the slot pod of ns/demo-0 (a keeper process), d001 the slot pod of ns/other-0 (nobody runs there),
d003 an engine of ns/other-0, d004 is nobody's, d010 and up are engines of ns/demo-0, a fresh one for every attack.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hack.ports import free_port
from tests.support import processes, witness
from tests.support.launcher_client import LauncherClient
from tests.support.rank_client import MIB, RankClient, TestSet

from ling_api import fdpass
from ling_api.errors import AgentUnreachable
from ling_api.v1 import agent_pb2 as pb
from ling_nodeagent.__main__ import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SLOT, OTHER = "ns/demo-0", "ns/other-0"
REVISION = "aaaaaaaa"
SET = TestSet(name="weights")
FIRST, LAST = 10, 250
PATIENCE = 90.0


def directory(last: int, capacity: str) -> dict[str, Any]:
    """The static file, with engines d010 to below `last`; without any also without the other slot's pods."""
    slot = {"revision": REVISION, "capacity": capacity, "graceSeconds": 5, "holdSeconds": 30}
    callers: dict[str, Any] = {
        "d000": {"pod": "demo-0", "uid": "u000", "slot": SLOT, "component": "slot"},
    }
    if last:
        callers["d001"] = {"pod": "other-0", "uid": "u001", "slot": OTHER, "component": "slot"}
        callers["d003"] = {
            "pod": "stranger", "uid": "u003", "slot": OTHER, "component": "engine", "revision": REVISION,
        }  # fmt: skip
    for number in range(FIRST, last):
        name = f"{number:03d}"
        callers[f"d{name}"] = {
            "pod": f"e{name}", "uid": f"u{name}", "slot": SLOT, "component": "engine", "revision": REVISION,
        }  # fmt: skip
    return {"slots": {SLOT: {"deployment": "demo", **slot}, OTHER: {"deployment": "other", **slot}}, "callers": callers}


class Scene:
    """`with Scene() as scene`: the processes, with SET sealed in ns/demo-0."""

    def __init__(self, capacity: str = "256Mi") -> None:
        self._capacity = capacity
        self._stack = ExitStack()
        self._devices = itertools.count(FIRST)
        self.launchers: list[LauncherClient] = []
        self.ranks: list[RankClient] = []
        self._ghosts: list[Ghost] = []

    def __enter__(self) -> Scene:
        self.root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ling-", dir="/tmp")))
        self.run, self.log = self.root / "run", self.root / "log"
        self.static = self.root / "static.yaml"
        self._write(0)  # a new agent waits up to 10 s for the pods that it knows: the engines come afterwards
        serve = ("-m", "ling_nodeagent", "serve", "--static", str(self.static), "--run-dir", str(self.run))
        # few descriptors, as many container runtimes give
        wrap = ("prlimit", "--nofile=1024:20000")
        self.agent = self._stack.enter_context(processes.python(*serve, env={}, log=self.log, wrap=wrap))
        processes.wait_for((self.folder("d004") / "agent.sock").exists, "the agent's folders")
        env = {
            "LING_RUN": str(self.folder("d000")), "LING_PORT": str(free_port()),
            "LING_PROBE_PORT": str(free_port()), "LING_ADDRESS": "127.0.0.1",
        }  # fmt: skip
        self.keeper = self._stack.enter_context(
            processes.python("-m", "ling_nodeagent.keeper", env=env, log=self.root / "keeper.log")
        )
        processes.wait_for(lambda: self.status(SLOT).get("listener"), "the keeper's listener")
        self._write(LAST)
        processes.wait_for(lambda: len(self.known()["callers"]) > LAST - FIRST, "the agent to know the engines")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def folder(self, device: str) -> Path:
        return self.run / "d" / device

    def _write(self, last: int) -> None:
        new = self.static.with_suffix(".new")
        new.write_text(yaml.safe_dump(directory(last, self._capacity)))
        new.replace(self.static)

    def known(self) -> dict[str, Any]:
        """All that the agent tells of itself."""
        try:
            return ask(self.run / "status.sock")
        except AgentUnreachable:
            return {"slots": {}, "callers": {}}

    def status(self, slot: str = SLOT) -> dict[str, Any]:
        found: dict[str, Any] = self.known()["slots"].get(slot, {})
        return found

    def descriptors(self) -> int:
        """How many the agent has open."""
        return len(list(Path(f"/proc/{self.agent.pid}/fd").iterdir()))

    async def at_rest(self) -> int:
        """The same, once nobody calls any more and three looks in a row agree."""
        folders = [each for each in (self.run / "sockets").iterdir() if each.name != "d000"]  # there is the keeper
        sockets = [self.run / "status.sock", self.run / "agent.sock", *folders]
        await self.until(lambda: not any(map(witness.callers, sockets)), "those who called to be gone")
        looks = [self.descriptors()]
        while len(looks) < 3 or len(set(looks[-3:])) > 1:
            await asyncio.sleep(0.05)
            looks.append(self.descriptors())
        return looks[-1]

    # who calls

    def fresh(self) -> str:
        """The device of an engine pod that has not called yet."""
        return f"d{next(self._devices):03d}"

    async def engine(self, device: str = "", **fields: Any) -> LauncherClient:
        """A launcher with its stream."""
        device = device or self.fresh()
        launcher = LauncherClient(
            folder=self.folder(device), pod=f"e{device[1:]}", **{"revision": REVISION, "weights": [SET], **fields}
        )
        self.launchers.append(launcher)
        return await launcher.open()

    async def rank(self, launcher: LauncherClient, server: str = "") -> RankClient:
        """A server's connection, and the launcher's word for it."""
        server = server or f"server-{launcher.pod}"
        rank = self.connect_rank(launcher.folder.name, server)
        launcher.server = server
        await launcher.event(pb.PHASE_STARTED)
        return rank

    def connect_rank(self, device: str, server: str) -> RankClient:
        """A rank that is, for the agent, a process of its own: it dies with `clear`."""
        ghost = Ghost(self.folder(device))
        self._ghosts.append(ghost)
        rank = RankClient.over(ghost.sock, server)
        self.ranks.append(rank)
        return rank

    async def granted(self, launcher: LauncherClient, request: int = 1) -> str:
        """The ticket to fetch SET."""
        answer = await launcher.attach(request)
        answer = await launcher.answer(request, final=True)
        assert answer.WhichOneof("answer") == "granted", answer
        return answer.granted.tickets[0].ticket.hex()

    async def filling(self, weights: TestSet, device: str = "") -> tuple[LauncherClient, RankClient, str]:
        """A server that was told to fill that set, and its ticket."""
        launcher = await self.engine(device, weights=[weights])
        rank = await self.rank(launcher)
        await launcher.attach()
        answer = await launcher.answer(final=True)
        assert answer.WhichOneof("answer") == "fill", answer
        return launcher, rank, answer.fill.tickets[0].ticket.hex()

    async def fill(self, weights: TestSet = SET) -> None:
        """The way it should be."""
        _, rank, ticket = await self.filling(weights)
        rank.deposit(ticket, weights.id, weights.nbytes)
        rank.write(weights.id, weights.identity.digest)
        rank.seal(weights.id, weights.manifest([weights.nbytes // 2] * 2).decode())

    async def serves_a_good_client(self) -> None:
        """A fresh pod attaches SET and reads its bytes."""
        launcher = await self.engine()
        rank = await self.rank(launcher)
        assert rank.read(await self.granted(launcher)) == f"{SET.id} {SET.identity.digest}"

    async def clear(self) -> None:
        """Ends everybody who called."""
        ranks, self.ranks = self.ranks, []
        launchers, self.launchers = self.launchers, []
        ghosts, self._ghosts = self._ghosts, []
        for rank in ranks:
            rank.close()
        for ghost in ghosts:
            ghost.end()
        for launcher in launchers:
            if launcher.open_now:
                await launcher.close()

    async def until(self, look: Callable[[], Any], what: str) -> None:
        ends = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < ends, f"waited {PATIENCE:g} s in vain for: {what}; {self.status()}"
            await asyncio.sleep(0.01)


class Ghost:
    """A process that connects to the folder's socket and hands the connection over: the agent takes it for the peer."""

    CODE = """
import socket, sys
ours = socket.socket(fileno=int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
socket.send_fds(ours, [b"x"], [sock.fileno()])
sock.close()
ours.recv(1)
"""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-I", "-S", "-c", self.CODE, str(folder / "fd.sock"), str(theirs.fileno())]
        self._ours = ours
        self._child = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(PATIENCE)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        self.sock = socket.socket(fileno=fds[0])
        self.sock.settimeout(PATIENCE)

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._ours.close()


# plain sockets


@contextlib.contextmanager
def call(folder: Path) -> Iterator[socket.socket]:
    """A connection to the folder's socket."""
    sock = fdpass.connect(folder / "fd.sock", PATIENCE)
    try:
        yield sock
    finally:
        sock.close()


def hello(kind: str, **fields: Any) -> dict[str, Any]:
    """The first frame that this kind of caller sends."""
    extra: dict[str, dict[str, Any]] = {"keeper": {"netns": 1}, "launcher": {}, "rank": {"server": "s", "rank": 0}}
    return {"op": "hello", "version": fdpass.VERSION, "kind": kind, **extra.get(kind, {}), **fields}


def refusal(sock: socket.socket) -> str:
    """The reason in the `error` frame that ends the connection; any descriptor that comes along is a failure."""
    reason = ""
    with contextlib.suppress(fdpass.PeerGone):
        while True:
            message, fds = fdpass.receive(sock)
            assert not fds, message
            if message["op"] == "error":
                reason = message["reason"]
    return reason


def say(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    fdpass.send(sock, message, fds)


def refused(folder: Path, *frames: dict[str, Any] | tuple[dict[str, Any], Sequence[int]]) -> str:
    """Sends the frames, returns the reason with which the connection was ended."""
    with call(folder) as sock:
        for frame in frames:
            message, fds = frame if isinstance(frame, tuple) else (frame, ())
            with contextlib.suppress(fdpass.PeerGone):
                say(sock, message, fds)
        return refusal(sock)


# mutations


class Mutations:
    """Wrong inputs made of right ones; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def frames(self, right: Sequence[dict[str, Any]]) -> bytes:
        """A session of frames with one thing wrong: a field, or a byte of the whole."""
        pick = self._random
        said = [dict(frame) for frame in right]
        if pick.random() < 0.5:
            frame = pick.choice(said)
            key = pick.choice(list(frame))
            if pick.random() < 0.2:
                del frame[key]
            else:
                frame[key] = self._value(frame[key])
            return b"".join(_encoded(frame) for frame in said)
        return self.bytes(b"".join(fdpass.encode(frame) for frame in said))

    def bytes(self, data: bytes) -> bytes:
        """A byte changed, taken out, put in, or the end cut off."""
        pick, at = self._random, self._random.randrange(max(len(data), 1))
        match pick.randrange(5):
            case 0:
                return data[:at] + bytes([pick.randrange(256)]) + data[at + 1 :]
            case 1:
                return data[:at] + data[at + 1 :]
            case 2:
                return data[:at] + pick.randbytes(pick.randint(1, 8)) + data[at:]
            case 3:
                return data[:at]
        return pick.randbytes(pick.randint(1, 64))

    def _value(self, value: Any) -> Any:
        pick = self._random
        strange: list[Any] = [
            None, True, -1, 0, 1, 1 << 63, 1 << 80, 1.5, "", "x", "\x00", "é" * 40, [], {}, [[]], {"op": "x"},
            "0" * 64, "f" * 64 + ":0", f"{'f' * 64}:99999", [0], [-1], [1 << 60], ["1"], "a" * 70000, [value],
        ]  # fmt: skip
        return pick.choice(strange)


def _encoded(frame: dict[str, Any]) -> bytes:
    try:
        return fdpass.encode(frame)
    except fdpass.ProtocolError:  # too long to be sent: say its length and part of it
        return fdpass.HEADER.pack(fdpass.MAX_BYTES + 1) + b"{"


def provoke(folder: Path, data: bytes) -> list[dict[str, Any]]:
    """Sends the bytes and then nothing; returns all that is answered. Weights among the answers are a failure."""
    answers = []
    with call(folder) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError, fdpass.ProtocolError):
            while True:
                message, fds = fdpass.receive(sock)
                fdpass.close_all(fds)
                assert message["op"] not in ("set", "keep"), message
                answers.append(message)
    return answers


def session(kind: str, weights: TestSet = SET) -> list[dict[str, Any]]:
    """What that kind of caller may say, without descriptors: hence never complete."""
    part = {"set": weights.id, "kind": "memfd", "sizes": [2 * MIB], "part": 0, "parts": 1}
    ticket = "0" * 64
    spoken: dict[str, list[dict[str, Any]]] = {
        "keeper": [
            {"op": "stored", "set": weights.id, "part": 0}, {"op": "stored-manifest", "set": weights.id},
            {"op": "members", "members": {"d000": dict.fromkeys(
                ("namespace", "pod", "uid", "slot", "component", "revision"), "x")}},
            {"op": "ready"}, {"op": "dropped", "set": weights.id}, {"op": "failed", "set": weights.id, "reason": "r"},
            {"op": "no-listener", "reason": "r"}, {"op": "leaving"}, {"op": "have", **part, "manifest": False},
        ],
        "launcher": [
            {"op": "ready"}, {"op": "stored", "set": weights.id, "part": 0}, {"op": "dropped", "set": weights.id},
            {"op": "stored-manifest", "set": weights.id}, {"op": "have", **part, "manifest": True},
        ],
        "rank": [
            {"op": "mapped", "set": weights.id}, {"op": "fetch", "re": 1, "ticket": ticket},
            {"op": "seal", "re": 2, "set": weights.id}, {"op": "deposit", "re": 3, "ticket": ticket, **part},
        ],
    }  # fmt: skip
    return [hello(kind), *spoken[kind]]


def plain_memfd(size: int, *, sealable: bool = True) -> int:
    fd = os.memfd_create("attack", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0))
    os.ftruncate(fd, size)
    return fd
