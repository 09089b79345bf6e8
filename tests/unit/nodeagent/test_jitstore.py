"""The node's archives: by namespace and key, bounded, longest unused first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ling_api.memory import memfd
from ling_nodeagent.jitstore import JitStore, given_up

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER = "a" * 64, "b" * 64


def archive(data: bytes, *, sealed: bool = True) -> int:
    fd = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if sealed:
        memfd.seal(fd)
    return fd


def keep(store: JitStore, namespace: str, key: str, data: bytes) -> None:
    fd = archive(data)
    try:
        store.keep(namespace, key, fd)
    finally:
        os.close(fd)


def found(store: JitStore, namespace: str, key: str) -> bytes | None:
    fd = store.find(namespace, key)
    if fd is None:
        return None
    try:
        return os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)


def test_an_archive_is_found_by_its_namespace_and_key_alone(tmp_path: Path) -> None:
    store = JitStore(tmp_path / "jit")
    assert found(store, "team", KEY) is None
    keep(store, "team", KEY, b"kernels")
    assert found(store, "team", KEY) == b"kernels"
    assert found(store, "other", KEY) is None, "executable code never crosses namespaces"
    assert found(store, "team", OTHER) is None
    assert found(JitStore(tmp_path / "jit"), "team", KEY) == b"kernels", "the next agent has it"


def test_a_newer_one_takes_its_place_and_who_reads_the_old_reads_on(tmp_path: Path) -> None:
    store = JitStore(tmp_path)
    keep(store, "team", KEY, b"old")
    reading = store.find("team", KEY)
    assert reading is not None
    keep(store, "team", KEY, b"newer")
    assert os.pread(reading, 10, 0) == b"old"
    os.close(reading)
    assert found(store, "team", KEY) == b"newer"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    store = JitStore(tmp_path)
    keep(store, "team", KEY, b"kernels")
    fd = store.find("team", KEY)
    assert fd is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    os.close(fd)


@pytest.mark.parametrize(
    ("data", "sealed", "says"),
    [
        pytest.param(b"x" * 10, False, "not sealed", id="its writer could still write"),
        pytest.param(b"", True, "0 bytes", id="empty"),
        pytest.param(b"x" * 101, True, "at most 100", id="too much"),
    ],
)
def test_what_is_no_archive_is_not_kept(tmp_path: Path, data: bytes, sealed: bool, says: str) -> None:
    fd = archive(data, sealed=sealed)
    with pytest.raises(ValueError, match=says):
        JitStore(tmp_path, limit=100).keep("team", KEY, fd)
    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with pytest.raises(ValueError, match="no memfd"):
        JitStore(tmp_path).keep("team", KEY, reader)
    os.close(reader)
    os.close(writer)


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    store = JitStore(tmp_path, limit=25)
    for at, key in enumerate((KEY, OTHER)):
        keep(store, "team", key, b"x" * 10)
        path = store._path("team", key)
        os.utime(path, (at, at))
    assert found(store, "team", KEY) is not None, "used now"
    keep(store, "team", "c" * 64, b"x" * 10)
    assert found(store, "team", OTHER) is None
    assert found(store, "team", KEY) is not None


@pytest.mark.parametrize(
    ("archives", "limit", "gone"),
    [
        pytest.param([], 10, [], id="none"),
        pytest.param([(1, 5, "a"), (2, 5, "b")], 10, [], id="just fits"),
        pytest.param([(2, 5, "b"), (1, 5, "a")], 9, ["a"], id="one too many"),
        pytest.param([(1, 1, "a"), (2, 9, "b"), (3, 9, "c")], 10, ["a", "b"], id="a small one does not help"),
    ],
)
def test_given_up(archives: list[tuple[int, int, str]], limit: int, gone: list[str]) -> None:
    assert given_up(archives, limit) == gone
