"""The archive of compiled kernels: times to the nanosecond, nothing half-written, nothing from outside the folder."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from ling_api.memory import memfd
from ling_engine.jit_exchange import JitExchange
from ling_engine.jitcache import JitCache

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ab" * 32
OLD = time.time_ns() - 3600 * 10**9 + 123_456_789


def write(folder: Path, name: str, data: bytes = b"x", when: int = OLD, mode: int = 0o644) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)
    os.utime(path, ns=(when, when))
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    folder = tmp_path / "full"
    write(folder, "triton/a/kernel.cubin", b"\x7fELF" * 100)
    write(folder, "flashinfer/norm.so", b"so", OLD + 1, 0o755)
    write(folder, "flashinfer/build.ninja.lock")
    write(folder, "sglang/half-written", when=time.time_ns())
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def packed(folder: Path) -> int:
    fd = JitCache(folder).pack()
    assert fd is not None
    return fd


def files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_is_whole_comes_over_with_its_time_and_mode(full: Path, empty: Path) -> None:
    fd = packed(full)
    assert memfd.sealed(fd)
    assert JitCache(empty).unpack(fd) == 2
    os.close(fd)
    wanted = files(full)
    assert files(empty) == {name: wanted[name] for name in ("triton/a/kernel.cubin", "flashinfer/norm.so")}


def test_files_that_are_there_stay(full: Path, empty: Path) -> None:
    mine = write(empty, "flashinfer/norm.so", b"mine")
    fd = packed(full)
    assert JitCache(empty).unpack(fd) == 1
    os.close(fd)
    assert mine.read_bytes() == b"mine"


def test_only_what_is_new_is_packed(full: Path, empty: Path) -> None:
    fd = packed(full)
    cache = JitCache(empty)
    cache.unpack(fd)
    os.close(fd)
    assert cache.pack() is None, "the agent has it already"
    write(empty, "triton/b/kernel.cubin")
    more = cache.pack()
    assert more is not None
    os.close(more)
    assert cache.pack() is None


def test_an_empty_folder_is_nothing_to_pack(empty: Path) -> None:
    assert JitCache(empty).pack() is None


@pytest.mark.parametrize("name", ["../outside", "a/../../outside"])
def test_an_archive_cannot_write_elsewhere(empty: Path, name: str) -> None:
    fd = os.memfd_create("t")
    with open(fd, "wb", closefd=False) as target, tarfile.open(fileobj=target, mode="w:") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(tarfile.FilterError):
        JitCache(empty).unpack(fd)
    os.close(fd)
    assert not (empty.parent / "outside").exists()


class Line:
    """The folder connection, as far as the exchange sees it."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], list[int]]] = []

    def put(self, message: dict[str, Any], fds: Any) -> bool:
        self.sent.append((message, [os.dup(fd) for fd in fds]))
        return True


async def test_it_is_asked_for_once_and_a_server_waits_until_it_is_there(full: Path, empty: Path) -> None:
    line = Line()
    exchange = JitExchange(empty)
    exchange.named(KEY)
    exchange.met(True, line.put)
    assert line.sent == [({"op": "jit", "key": KEY}, [])]
    waiting = asyncio.create_task(exchange.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    exchange.came({"op": "jit", "bytes": 1}, [packed(full)])
    await waiting
    assert "flashinfer/norm.so" in files(empty)
    exchange.met(True, line.put)
    assert len(line.sent) == 1, "a new agent is not asked again"


@pytest.mark.parametrize(
    ("key", "has_it", "answer"),
    [
        pytest.param("", True, None, id="a runtime that compiles nothing"),
        pytest.param(KEY, False, None, id="an agent that keeps no caches"),
        pytest.param(KEY, True, {"op": "jit", "bytes": 0}, id="an agent that has none yet"),
    ],
)
async def test_nothing_to_wait_for(empty: Path, key: str, has_it: bool, answer: dict[str, Any] | None) -> None:
    exchange = JitExchange(empty)
    exchange.named(key)
    exchange.met(has_it, Line().put)
    if answer is not None:
        exchange.came(answer, [])
    await asyncio.wait_for(exchange.settled(), 1)


async def test_without_a_folder_nothing_is_asked_or_offered(tmp_path: Path) -> None:
    line = Line()
    exchange = JitExchange(tmp_path / "absent")
    exchange.named(KEY)
    exchange.met(True, line.put)
    exchange.offer()
    await asyncio.wait_for(exchange.settled(), 1)
    assert line.sent == []


async def test_a_broken_archive_is_no_reason_not_to_start(empty: Path) -> None:
    exchange = JitExchange(empty)
    exchange.named(KEY)
    exchange.met(True, Line().put)
    fd = os.memfd_create("t")
    os.write(fd, b"no archive at all" * 100)
    exchange.came({"op": "jit", "bytes": 1}, [fd])
    await asyncio.wait_for(exchange.settled(), 5)


async def test_what_was_compiled_is_offered(full: Path, empty: Path) -> None:
    line = Line()
    exchange = JitExchange(full)
    exchange.named(KEY)
    exchange.met(True, line.put)
    line.sent.clear()
    exchange.offer()
    async with asyncio.timeout(5):
        while not line.sent:
            await asyncio.sleep(0.005)
    message, (fd,) = line.sent[0]
    assert message == {"op": "jit-offer", "key": KEY, "bytes": os.fstat(fd).st_size}
    assert JitCache(empty).unpack(fd) == 2
    os.close(fd)
