"""Frames and descriptors on a real socket pair."""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.support.descriptors import none_leaked

from ling_api import fdpass
from ling_api.fdpass import PeerGone, ProtocolError, Reader, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    with none_leaked():
        yield


@pytest.fixture
def pair(no_descriptor_leaks: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        yield one, two


@pytest.fixture
def files(no_descriptor_leaks: None) -> Iterator[list[int]]:
    fds = [os.memfd_create(f"file-{number}") for number in range(3)]
    yield fds
    fdpass.close_all(fds)


def same_file(one: int, two: int) -> bool:
    return os.fstat(one).st_ino == os.fstat(two).st_ino


def raw_send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    assert sock.sendmsg([data], rights) == len(data)


def framed(body: bytes) -> bytes:
    return fdpass.HEADER.pack(len(body)) + body


def take_all(sock: socket.socket) -> None:
    """Reads frames until the peer's end, as an event loop does."""
    reader = Reader(sock)
    try:
        while True:
            for _, fds in reader.read():
                fdpass.close_all(fds)
            select.select([sock], [], [])
    finally:
        reader.close()


def take_one(sock: socket.socket) -> None:
    fdpass.close_all(fdpass.receive(sock)[1])


class TestGoodFrames:
    @pytest.mark.parametrize("count", [0, 1, 3], ids="{} fds".format)
    def test_a_frame_arrives_with_its_descriptors(
        self, pair: tuple[socket.socket, socket.socket], files: list[int], count: int
    ) -> None:
        fdpass.send(pair[0], {"op": "x", "word": "grüß"}, files[:count])
        message, came = fdpass.receive(pair[1])
        assert message == {"op": "x", "word": "grüß"}
        assert [same_file(*both) for both in zip(came, files, strict=False)] == [True] * count
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in came)
        fdpass.close_all(came)

    def test_the_most_descriptors_and_the_most_bytes(self, pair: tuple[socket.socket, socket.socket]) -> None:
        fd = os.memfd_create("one")
        message = {"op": "x", "text": ""}
        message["text"] = "a" * (fdpass.MAX_BYTES - len(json.dumps(message, separators=(",", ":"))))
        sender = threading.Thread(target=fdpass.send, args=(pair[0], message, [fd] * fdpass.MAX_FDS))
        sender.start()
        got, came = fdpass.receive(pair[1])
        sender.join()
        assert (got, len(came)) == (message, fdpass.MAX_FDS)
        fdpass.close_all([*came, fd])

    def test_several_frames_in_one_read_keep_their_own_descriptors(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        for number, fds in enumerate((files[:1], [], files[1:], [])):
            fdpass.send(pair[0], {"op": "x", "n": number}, fds)
        frames = Reader(pair[1]).read()
        assert [(message["n"], len(fds)) for message, fds in frames] == [(0, 1), (1, 0), (2, 2), (3, 0)]
        assert same_file(frames[0][1][0], files[0])
        assert same_file(frames[2][1][1], files[2])
        for _, fds in frames:
            fdpass.close_all(fds)

    def test_a_frame_in_many_pieces_keeps_its_descriptors(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        data = fdpass.encode({"op": "x"})
        reader = Reader(pair[1])
        raw_send(pair[0], data[:1], files)
        assert reader.read() == []
        for at in range(1, len(data)):
            assert reader.read() == []
            raw_send(pair[0], data[at : at + 1])
        raw_send(pair[0], fdpass.encode({"op": "y"}), files[:1])
        frames = reader.read()
        assert [(message["op"], len(fds)) for message, fds in frames] == [("x", 3), ("y", 1)]
        for _, fds in frames:
            fdpass.close_all(fds)

    def test_two_frames_in_one_write(self, pair: tuple[socket.socket, socket.socket]) -> None:
        raw_send(pair[0], fdpass.encode({"op": "x"}) + fdpass.encode({"op": "y"}))
        assert [fdpass.receive(pair[1])[0]["op"], fdpass.receive(pair[1])[0]["op"]] == ["x", "y"]

    def test_frames_before_the_end_come_first(self, pair: tuple[socket.socket, socket.socket]) -> None:
        fdpass.send(pair[0], {"op": "x"})
        pair[0].close()
        reader = Reader(pair[1])
        assert reader.read() == [({"op": "x"}, [])]
        with pytest.raises(PeerGone):
            reader.read()


BAD = {
    "too long": fdpass.HEADER.pack(fdpass.MAX_BYTES + 1),
    "far too long": b"\xff\xff\xff\xff",
    "too short": fdpass.HEADER.pack(1) + b"1",
    "empty": fdpass.HEADER.pack(0),
    "ends in the header": b"\x00\x00",
    "ends in the body": fdpass.HEADER.pack(9) + b"{}",
    "a list": framed(b'["op"]'),
    "a number": framed(b"12"),
    "no op": framed(b'{"a":1}'),
    "op is no text": framed(b'{"op":1}'),
    "no JSON": framed(b"{op:1}"),
    "no UTF-8": framed(b'{"op":"\xff"}'),
    "half a surrogate pair": framed(b'{"op":"\\ud800"}'),
    "NaN": framed(b'{"op":"x","a":NaN}'),
    "infinity": framed(b'{"op":"x","a":-Infinity}'),
    "a number beyond floats": framed(b'{"op":"x","a":1e999}'),
    "a number of 5000 digits": framed(b'{"op":"x","a":' + b"1" * 5000 + b"}"),
    "deep lists": framed(b'{"op":"x","a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "deep mappings": framed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
}


class TestBadFrames:
    @pytest.mark.parametrize("take", [take_one, take_all], ids=["receive", "Reader"])
    @pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
    def test_what_breaks_the_framing_is_refused_and_its_descriptors_closed(
        self, pair: tuple[socket.socket, socket.socket], files: list[int], data: bytes, take: object
    ) -> None:
        def write() -> None:
            raw_send(pair[0], data[:3] or data, files)
            pair[0].sendall(data[3:])
            pair[0].close()

        writer = threading.Thread(target=write)
        writer.start()
        with pytest.raises(ProtocolError):
            take(pair[1])  # type: ignore[operator]
        pair[1].close()
        writer.join()

    @pytest.mark.parametrize("take", [take_one, take_all], ids=["receive", "Reader"])
    def test_more_descriptors_than_a_frame_may_have(
        self, pair: tuple[socket.socket, socket.socket], files: list[int], take: object
    ) -> None:
        raw_send(pair[0], fdpass.encode({"op": "x"}), files * 60)
        with pytest.raises(ProtocolError, match="more than 128"):
            take(pair[1])  # type: ignore[operator]

    @pytest.mark.parametrize("take", [take_one, take_all], ids=["receive", "Reader"])
    @pytest.mark.parametrize("at", [2, 6], ids=["in the header", "in the body"])
    def test_descriptors_behind_the_first_byte(
        self, pair: tuple[socket.socket, socket.socket], files: list[int], at: int, take: object
    ) -> None:
        data = fdpass.encode({"op": "x"})
        raw_send(pair[0], data[:at], files[:1])
        raw_send(pair[0], data[at:], files[1:])
        with pytest.raises(ProtocolError, match="first byte"):
            take(pair[1])  # type: ignore[operator]

    def test_good_frames_before_a_bad_one_leave_nothing_open(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        fdpass.send(pair[0], {"op": "x"}, files)
        raw_send(pair[0], framed(b"[]"), files)
        with pytest.raises(ProtocolError):
            Reader(pair[1]).read()

    def test_the_end_between_frames_is_no_error_of_the_peer(self, pair: tuple[socket.socket, socket.socket]) -> None:
        pair[0].close()
        with pytest.raises(PeerGone):
            fdpass.receive(pair[1])
        with pytest.raises(PeerGone):
            Reader(pair[1]).read()
        with pytest.raises(PeerGone):
            fdpass.send(pair[1], {"op": "x"})

    def test_the_incomplete_frame_of_a_closed_reader_leaves_nothing_open(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        raw_send(pair[0], fdpass.encode({"op": "x"})[:7], files)
        reader = Reader(pair[1])
        assert reader.read() == []
        reader.close()

    @pytest.mark.parametrize(
        ("message", "count"),
        [({"op": "x", "a": "b" * fdpass.MAX_BYTES}, 0), ({"op": "x"}, fdpass.MAX_FDS + 1)],
        ids=["bytes", "fds"],
    )
    def test_nothing_too_big_is_sent(
        self, pair: tuple[socket.socket, socket.socket], files: list[int], message: dict[str, str], count: int
    ) -> None:
        writer = Writer(pair[0])
        for send in (lambda *frame: fdpass.send(pair[0], *frame), writer.put):
            with pytest.raises(ProtocolError, match="at most"):
                send(message, files[:1] * count)
        assert not writer.pending


class TestBlockingMode:
    @pytest.mark.parametrize("blocking", [True, False])
    def test_is_never_changed(self, pair: tuple[socket.socket, socket.socket], blocking: bool) -> None:
        for sock in pair:
            sock.setblocking(blocking)
        writer = Writer(pair[0])
        writer.put({"op": "x"})
        assert writer.flush()
        fdpass.send(pair[0], {"op": "x"})
        assert len(Reader(pair[1]).read()) == 2
        fdpass.send(pair[0], {"op": "x"})
        fdpass.receive(pair[1])
        assert Reader(pair[1]).read() == []  # nothing there: returns, blocking socket or not
        for sock in pair:
            assert bool(fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK) is not blocking

    def test_a_socket_with_a_time_out_is_not_waited_for(self, pair: tuple[socket.socket, socket.socket]) -> None:
        pair[1].settimeout(30)
        assert Reader(pair[1]).read() == []

    def test_a_non_blocking_socket_gets_whole_frames(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        for sock in pair:
            sock.setblocking(False)
        message = {"op": "x", "text": "a" * 900_000}  # far more than the socket takes at once
        sender = threading.Thread(target=fdpass.send, args=(pair[0], message, files))
        sender.start()
        got, came = fdpass.receive(pair[1])
        sender.join()
        assert (got, len(came)) == (message, len(files))
        fdpass.close_all(came)

    def test_receive_keeps_the_socket_s_time_out(self, pair: tuple[socket.socket, socket.socket]) -> None:
        pair[1].settimeout(0.01)
        with pytest.raises(TimeoutError):
            fdpass.receive(pair[1])


class TestWriter:
    def test_keeps_its_own_duplicates_until_they_are_sent(self, pair: tuple[socket.socket, socket.socket]) -> None:
        pair[0].setblocking(False)
        fd = os.memfd_create("one")
        inode = os.fstat(fd).st_ino
        writer, reader = Writer(pair[0]), Reader(pair[1])
        for _ in range(40):
            writer.put({"op": "x", "text": "a" * 50_000}, [fd])
        os.close(fd)
        assert not writer.flush()
        assert writer.pending
        came = 0
        while writer.pending or came < 40:
            for _, fds in reader.read():
                assert [os.fstat(each).st_ino for each in fds] == [inode]
                fdpass.close_all(fds)
                came += 1
            writer.flush()
        assert came == 40

    def test_close_drops_what_was_not_sent(self, pair: tuple[socket.socket, socket.socket], files: list[int]) -> None:
        writer = Writer(pair[0])
        writer.put({"op": "x"}, files)
        writer.close()
        assert not writer.pending

    def test_a_peer_that_left(self, pair: tuple[socket.socket, socket.socket], files: list[int]) -> None:
        writer = Writer(pair[0])
        writer.put({"op": "x"}, files)
        pair[1].close()
        with pytest.raises(PeerGone):
            writer.flush()
        writer.close()

    def test_a_closed_descriptor_is_the_caller_s_mistake(
        self, pair: tuple[socket.socket, socket.socket], files: list[int]
    ) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            Writer(pair[0]).put({"op": "x"}, [*files, 9999])


class TestSockets:
    def test_listen_takes_the_place_of_a_stale_socket(self, tmp_path: Path) -> None:
        path = tmp_path / "fd.sock"
        fdpass.listen(path).close()
        with fdpass.listen(path, mode=0o600) as listener, fdpass.connect(path, timeout=60) as caller:
            accepted, _ = listener.accept()
            with accepted:
                fdpass.send(caller, {"op": "hello"})
                assert fdpass.receive(accepted) == ({"op": "hello"}, [])
        assert path.stat().st_mode & 0o777 == 0o600
        assert [entry.name for entry in tmp_path.iterdir()] == ["fd.sock"]

    def test_listen_leaves_another_file_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "fd.sock"
        path.write_text("mine")
        with pytest.raises(FileExistsError):
            fdpass.listen(path)
        assert path.read_text() == "mine"

    def test_connect_to_nobody(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            fdpass.connect(tmp_path / "fd.sock")

    def test_the_peer_s_pidfd_tells_of_its_death(self, tmp_path: Path) -> None:
        caller = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
        with fdpass.listen(tmp_path / "s") as listener:
            child = subprocess.Popen([sys.executable, "-S", "-c", caller, str(tmp_path / "s")])
            accepted, _ = listener.accept()
            with accepted:
                pidfd = fdpass.peer_pidfd(accepted)
                assert fcntl.fcntl(pidfd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
                assert select.select([pidfd], [], [], 0)[0] == []
            assert select.select([pidfd], [], [], 60)[0] == [pidfd]
            os.close(pidfd)
            assert child.wait(60) == 0

    def test_the_network_namespace_has_a_number(self, pair: tuple[socket.socket, socket.socket]) -> None:
        assert fdpass.netns_cookie(pair[0]) == fdpass.netns_cookie(pair[1]) > 0

    def test_close_all_passes_over_the_closed(self, files: list[int]) -> None:
        fd = os.dup(files[0])
        fdpass.close_all([fd, fd])
        with pytest.raises(OSError) as caught:
            os.fstat(fd)
        assert caught.value.errno == errno.EBADF
