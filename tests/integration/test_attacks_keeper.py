"""A hostile or broken node agent against a real keeper: it lives, holds what it had, and gives it to the next agent."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hack.ports import free_port
from tests.support import processes
from tests.support.attacks import Mutations
from tests.support.rank_client import MIB, TestSet, memfd_of

from ling_api import fdpass
from ling_api.memory import memfd

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
SET, OTHER = TestSet(name="kept", nbytes=2 * MIB), TestSet(name="hostile", nbytes=2 * MIB)
QUICK = "import sys, ling_nodeagent.keeper as keeper; keeper.TICK = 0.005; sys.exit(keeper.main(()))"
MEMBER = dict.fromkeys(("namespace", "pod", "uid", "slot", "component", "revision"), "x")
PART = {"set": OTHER.id, "kind": "memfd", "sizes": [2 * MIB], "part": 0, "parts": 1, "manifest": False}
SAID: list[dict[str, Any]] = [
    {"op": "keep", **PART}, {"op": "keep-manifest", "set": OTHER.id}, {"op": "drop", "set": OTHER.id},
    {"op": "listen", "port": 8000, "backlog": 4096}, {"op": "listener"}, {"op": "word", "ready": True, "message": "m"},
    {"op": "members", "members": {"d001": MEMBER}}, {"op": "error", "reason": "r"},
]  # fmt: skip


class Stage:
    """A keeper, and the socket at which it calls its agent."""

    def __init__(self, folder: Path, keeper: processes.Child) -> None:
        self.listener = fdpass.listen(folder / "fd.sock")
        self.listener.settimeout(60)
        self.keeper = keeper

    @contextlib.contextmanager
    def call(self) -> Iterator[tuple[socket.socket, dict[str, list[int]]]]:
        """The keeper's next call: the connection, and the sets that it gave back."""
        sock, _ = self.listener.accept()
        sock.settimeout(60)
        try:
            held: dict[str, list[int]] = {}
            while True:
                message, fds = fdpass.receive(sock)
                if message["op"] == "have":
                    held[message["set"]] = fds
                else:
                    fdpass.close_all(fds)
                if message["op"] == "ready":
                    break
            yield sock, held
        finally:
            for fds in held.values():
                fdpass.close_all(fds)
            sock.close()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.keeper.pid}/fd").iterdir()))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    env = {
        "LING_RUN": str(tmp_path), "LING_ADDRESS": "127.0.0.1", "LING_PORT": str(free_port()),
        "LING_PROBE_PORT": str(free_port()),
    }  # fmt: skip
    with processes.python("-c", QUICK, env=env, log=tmp_path / "log") as keeper:
        made = Stage(tmp_path, keeper)
        yield made
        made.listener.close()


def keep(sock: socket.socket) -> None:
    """Gives the keeper a sealed set."""
    region, manifest = memfd_of(b"k" * SET.nbytes), memfd_of(SET.manifest([SET.nbytes]))
    for fd in (region, manifest):
        memfd.seal(fd)
    message = {"op": "keep", **PART, "set": SET.id, "manifest": True}
    fdpass.send(sock, message, [manifest, region])
    fdpass.close_all([region, manifest])
    assert fdpass.receive(sock)[0]["op"] == "stored"


def test_200_mutated_sessions_take_nothing_from_it(stage: Stage) -> None:
    mutations = Mutations(seed=7)
    with stage.call() as (sock, _):
        keep(sock)
    with stage.call() as (_, held):
        assert list(held) == [SET.id]
        before = stage.descriptors()  # between two calls it has one less, so it is counted within one each time
    for number in range(200):
        with stage.call() as (sock, held):
            assert SET.id in held
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(mutations.frames(SAID[number % len(SAID) :]))
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError, fdpass.ProtocolError):
                while True:
                    fdpass.close_all(fdpass.receive(sock)[1])
    with stage.call() as (_, held):
        assert os.pread(held[SET.id][1], 4, 0) == b"kkkk"
        assert memfd.sealed(held[SET.id][1])
        processes.wait_for(lambda: stage.descriptors() <= before + 1, "no descriptor is left but perhaps a listener")
    assert stage.keeper.poll() is None


def test_a_region_truncated_after_it_was_kept_does_no_harm(stage: Stage) -> None:
    region = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(region, 2 * MIB)
    with stage.call() as (sock, _):
        fdpass.send(sock, {"op": "keep", **PART}, [region])
        assert fdpass.receive(sock)[0] == {"op": "stored", "set": OTHER.id, "part": 0}
        os.ftruncate(region, 0)
        keep(sock)
    with stage.call() as (_, held):
        assert list(held) == [OTHER.id, SET.id]
    os.close(region)
    assert stage.keeper.poll() is None


@pytest.mark.parametrize("what", ["pipe", "socket", "device", "read-only"])
def test_descriptors_that_are_no_regions_are_told_as_failed(stage: Stage, what: str) -> None:
    fds = descriptors(what)
    with stage.call() as (sock, _):
        fdpass.send(sock, {"op": "keep", **PART}, fds[:1])
        message, _ = fdpass.receive(sock)
        assert message["op"] == "failed"
        assert "cannot populate" in message["reason"]
        keep(sock)
    fdpass.close_all(fds)
    assert stage.keeper.poll() is None


def descriptors(what: str) -> list[int]:
    if what == "pipe":
        return list(os.pipe())[::-1]
    if what == "socket":
        return [sock.detach() for sock in socket.socketpair()]
    if what == "device":
        return [os.open("/dev/zero", os.O_RDWR)]
    region = os.memfd_create("attack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    return [memfd.reader(region), region]
