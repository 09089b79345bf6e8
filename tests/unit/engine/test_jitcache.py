"""The archive of compiled kernels: times to the nanosecond, nothing half-written, nothing from outside the folder."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ling_api.memory import memfd
from ling_engine import jit_early, jit_exchange, jitcache
from ling_engine.jit_exchange import JitExchange
from ling_engine.jitcache import JitCache

if TYPE_CHECKING:
    from pathlib import Path

KEY = "ab" * 32
OLD = time.time_ns() - 3600 * 10**9 + 123_456_789
YOUNG = time.time_ns() + 3600 * 10**9  # however long a test takes


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
    write(folder, "sglang/half-written", when=YOUNG)
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


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> int:
    fd = os.memfd_create("t")
    with open(fd, "wb", closefd=False) as target:
        for info, content in members:
            target.write(info.tobuf(tarfile.PAX_FORMAT))
            target.write(content + b"\0" * (-len(content) % tarfile.BLOCKSIZE))
        target.write(b"\0" * 2 * tarfile.BLOCKSIZE)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def member(name: str, size: int = 0, **headers: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = size, headers
    return info


def test_a_sparse_member_is_passed_over(empty: Path) -> None:
    """It costs its archive nothing and would cost us all of its size."""
    huge = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 50)}
    fd = archive_of((member("huge", 1, **huge), b"x"), (member("good", 1), b"y"))
    with open(fd, "rb", closefd=False) as source, tarfile.open(fileobj=source) as archive:
        assert archive.getmember("huge").issparse()
        assert archive.getmember("huge").size == 1 << 50
    assert JitCache(empty).unpack(fd) == 1
    os.close(fd)
    assert list(files(empty)) == ["good"]


def test_sizes_of_more_than_may_be_are_refused_before_anything_is_written(empty: Path) -> None:
    most = (jitcache.MOST - 1, 2)
    fd = os.memfd_create("t")
    with open(fd, "wb", closefd=False) as target:  # the archive has all those bytes: as holes
        target.write(member("first", most[0]).tobuf())
        target.seek(most[0] + (-most[0] % tarfile.BLOCKSIZE), os.SEEK_CUR)
        target.write(member("second", most[1]).tobuf() + bytes(3 * tarfile.BLOCKSIZE))
    with pytest.raises(ValueError, match="more than 2147483648 bytes"):
        JitCache(empty).unpack(fd)
    os.close(fd)
    assert files(empty) == {}


@pytest.mark.parametrize(
    ("bad", "content", "error"),
    [
        pytest.param(member("short", 1 << 30), b"x", tarfile.ReadError, id="fewer bytes than it says"),
        pytest.param(
            member("a", 1, **{"LING.mtime_ns": "9" * 30}), b"x", ValueError, id="a time that no file can have"
        ),
        pytest.param(member("a", 1, comment="x" * (2 << 20)), b"x", tarfile.ReadError, id="a header of 2 MiB"),
    ],
)
def test_what_is_wrong_in_an_archive_leaves_no_half_file(
    empty: Path, bad: tarfile.TarInfo, content: bytes, error: type[Exception]
) -> None:
    fd = archive_of((bad, content))
    with pytest.raises(error):
        JitCache(empty).unpack(fd)
    os.close(fd)
    assert files(empty) == {}


def test_too_many_files_are_refused(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jitcache, "MOST_FILES", 2)
    fd = archive_of(*((member(str(number)), b"") for number in range(3)))
    with pytest.raises(ValueError, match="more than 2"):
        JitCache(empty).unpack(fd)
    os.close(fd)
    assert files(empty) == {}


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "used", "unused", "host", "packs"),
    [
        pytest.param("max", 0, 0, 1024, True, id="no limit, room on the host"),
        pytest.param("max", 0, 0, 200, False, id="no room on the host"),
        pytest.param(str(1000 * MIB), 500, 0, 1024, True, id="room in the pod"),
        pytest.param(str(1000 * MIB), 900, 0, 1024, False, id="no room in the pod"),
        pytest.param(str(1000 * MIB), 900, 800, 1024, True, id="cached files give way"),
        pytest.param("", 0, 0, 0, True, id="nothing is told"),
    ],
)
def test_an_archive_is_made_only_where_there_is_room(
    full: Path, tmp_path: Path, limit: str, used: int, unused: int, host: int, packs: bool
) -> None:
    group, meminfo = tmp_path / "group", tmp_path / "meminfo"
    group.mkdir()
    if limit:
        (group / "memory.max").write_text(limit)
        (group / "memory.current").write_text(str(used * MIB))
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {unused * MIB}\n")
        meminfo.write_text(f"MemTotal: 9 kB\nMemAvailable: {host * 1024} kB\n")
    cache = JitCache(full, group, meminfo)
    fd = cache.pack()
    assert (fd is not None) == packs
    if fd is not None:
        os.close(fd)


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
    await asyncio.wait_for(exchange.settled(), 30)


async def test_without_a_folder_nothing_is_asked_or_offered(tmp_path: Path) -> None:
    line = Line()
    exchange = JitExchange(tmp_path / "absent")
    exchange.named(KEY)
    exchange.met(True, line.put)
    exchange.offer()
    await asyncio.wait_for(exchange.settled(), 30)
    assert line.sent == []


async def test_a_broken_archive_is_no_reason_not_to_start(empty: Path) -> None:
    exchange = JitExchange(empty)
    exchange.named(KEY)
    exchange.met(True, Line().put)
    fd = os.memfd_create("t")
    os.write(fd, b"no archive at all" * 100)
    exchange.came({"op": "jit", "bytes": 1}, [fd])
    await asyncio.wait_for(exchange.settled(), 30)


async def test_what_was_compiled_is_offered(full: Path, empty: Path) -> None:
    line = Line()
    exchange = JitExchange(full)
    exchange.named(KEY)
    exchange.met(True, line.put)
    line.sent.clear()
    exchange.offer()
    async with asyncio.timeout(30):
        while not line.sent:
            await asyncio.sleep(0.005)
    message, (fd,) = line.sent[0]
    assert message == {"op": "jit-offer", "key": KEY, "bytes": os.fstat(fd).st_size}
    assert JitCache(empty).unpack(fd) == 2
    os.close(fd)


class Early:
    """An agent that is asked ahead: what it says to each ask, one after the other."""

    def __init__(self, *answers: OSError | int | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def ask(self, run_dir: Path, key: str, came: Any) -> None:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer
        came({"op": "jit", "key": key, "bytes": 0 if answer is None else 1}, [] if answer is None else [answer])


def ahead(empty: Path, early: Early, monkeypatch: pytest.MonkeyPatch) -> JitExchange:
    monkeypatch.setattr(jit_early, "ask", early.ask)
    monkeypatch.setattr(jit_exchange, "_AGAIN_S", 0.001)
    exchange = JitExchange(empty)
    exchange.ahead(KEY, empty)
    return exchange


async def test_what_was_asked_for_ahead_is_not_asked_for_again(
    full: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = Early(FileNotFoundError("no agent yet"), ConnectionError("this pod is not known (yet)"), packed(full))
    line = Line()
    exchange = ahead(empty, early, monkeypatch)
    exchange.ahead(KEY, empty)
    async with asyncio.timeout(30):
        while not (empty / "flashinfer/norm.so").exists():  # what is being written is not looked at
            await asyncio.sleep(0.001)
    exchange.named(KEY)
    exchange.met(True, line.put)
    await asyncio.wait_for(exchange.settled(), 30)
    assert (early.asked, line.sent) == (3, [])


@pytest.mark.parametrize(
    "early",
    [
        pytest.param(Early(), id="silent"),
        pytest.param(Early(*(ConnectionError("hello: unknown kind 'kernels'") for _ in range(99))), id="older"),
    ],
)
async def test_an_agent_that_did_not_answer_ahead_is_asked_by_the_line(
    early: Early, full: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    exchange = ahead(empty, early, monkeypatch)
    async with asyncio.timeout(30):
        while not early.asked:
            await asyncio.sleep(0)
    exchange.named(KEY)
    exchange.met(True, line.put)
    assert line.sent == [({"op": "jit", "key": KEY}, [])]
    exchange.came({"op": "jit", "bytes": 1}, [packed(full)])
    await asyncio.wait_for(exchange.settled(), 30)
    asked = early.asked
    await asyncio.sleep(0.02)
    assert early.asked == asked, "nobody asks ahead any more"
    assert "flashinfer/norm.so" in files(empty)


async def test_a_broken_archive_that_came_ahead_is_no_reason_not_to_start(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.memfd_create("t")
    os.write(fd, b"no archive at all" * 100)
    exchange = ahead(empty, Early(fd), monkeypatch)
    await asyncio.wait_for(exchange.settled(), 30)


async def test_a_server_waits_for_what_came_ahead_and_is_being_unpacked(
    full: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, unpack = threading.Event(), JitCache.unpack

    def slowly(cache: JitCache, fd: int) -> int:
        whole.wait(30)
        return unpack(cache, fd)

    monkeypatch.setattr(JitCache, "unpack", slowly)
    exchange, line = ahead(empty, Early(packed(full)), monkeypatch), Line()
    async with asyncio.timeout(30):
        while not exchange._answered:
            await asyncio.sleep(0)
    exchange.named(KEY)
    exchange.met(True, line.put)
    waiting = asyncio.create_task(exchange.settled())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    whole.set()
    await waiting
    assert (line.sent, "flashinfer/norm.so" in files(empty)) == ([], True)


async def test_what_the_imports_left_beside_it_is_not_offered(
    full: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unpacked before they ended; a server that compiles nothing has nothing to offer."""
    exchange, line = ahead(empty, Early(packed(full)), monkeypatch), Line()
    async with asyncio.timeout(30):
        await exchange._settled.wait()
    write(empty, "sglang/made-by-an-import")
    exchange.named(KEY)
    exchange.met(True, line.put)
    await exchange.settled()
    await asyncio.gather(*exchange._tasks, return_exceptions=True)
    exchange.offer()
    await asyncio.gather(*exchange._tasks)
    assert line.sent == []
    write(empty, "sglang/compiled-by-a-server")
    exchange.offer()
    await asyncio.gather(*exchange._tasks)
    assert [message["op"] for message, _ in line.sent] == ["jit-offer"]
    os.close(line.sent[0][1][0])
