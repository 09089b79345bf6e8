"""What only real memory can show: seals, who may still write, what a mapping costs, which addresses stay."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.descriptors import none_leaked

from ling_api import fdpass
from ling_api.errors import DeviceError, FillFailed, WriterLeft
from ling_api.memory import memfd
from ling_api.memory.memfd import MemfdMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
SIZES = (2 * MIB, 4 * MIB)
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    with none_leaked():
        yield


@pytest.fixture
def regions(no_descriptor_leaks: None) -> Iterator[list[int]]:
    fds = [MemfdMemory().create(size) for size in SIZES]
    yield fds
    fdpass.close_all(fds)


def mapped_at(address: int) -> list[str]:
    """Line of /proc/self/maps for the address: range, access, offset, device, inode, path."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return line.split(maxsplit=5)
    return []


class TestCreate:
    def test_a_region_takes_no_memory_before_it_is_touched(self, regions: list[int]) -> None:
        assert [os.fstat(fd).st_size for fd in regions] == list(SIZES)
        assert [os.fstat(fd).st_blocks for fd in regions] == [0, 0]
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in regions)

    def test_mapping_touches_nothing_either(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        assert [os.fstat(fd).st_blocks for fd in regions] == [0, 0]
        mapping.close()

    def test_too_much_is_a_device_error(self) -> None:
        with pytest.raises(DeviceError, match="cannot size a region"):
            MemfdMemory().create(1 << 63)


class TestMap:
    def test_regions_lie_back_to_back(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        mapping.buffer(2 * MIB - 2, 4)[:] = b"abcd"
        assert os.pread(regions[0], 2, 2 * MIB - 2) == b"ab"
        assert os.pread(regions[1], 2, 0) == b"cd"
        mapping.close()
        assert mapped_at(mapping.address) == []

    def test_a_tail_goes_behind_the_last_region(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        tail = MemfdMemory().create(2 * MIB)
        mapping.extend(tail, 2 * MIB)
        mapping.buffer(6 * MIB, 4)[:] = b"tail"
        assert os.pread(tail, 4, 0) == b"tail"
        assert mapping.size == 8 * MIB
        mapping.close()
        os.close(tail)

    def test_the_room_for_tails_ends(self, regions: list[int]) -> None:
        memory = MemfdMemory()
        mapping = memory.map(regions, SIZES, writable=True)
        whole = memory.create(memory.max_region)
        mapping.extend(whole, memory.max_region)
        more = memory.create(2 * MIB)
        with pytest.raises(DeviceError, match="no addresses left"):
            mapping.extend(more, 2 * MIB)
        mapping.close()
        fdpass.close_all([whole, more])

    def test_a_wrong_size_leaves_nothing_mapped(self, regions: list[int]) -> None:
        with pytest.raises(DeviceError, match="region 1 has 4194304 bytes; its manifest says 2097152"):
            MemfdMemory().map(regions, (2 * MIB, 2 * MIB), writable=False)
        mapped = {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines()}
        assert mapped.isdisjoint({str(os.fstat(fd).st_ino) for fd in regions})

    def test_two_gibibytes_take_a_few_milliseconds(self) -> None:
        memory = MemfdMemory()
        fds = [memory.create(1 << 30) for _ in range(2)]
        for fd in fds:
            memfd.seal(fd)
        readers = [memfd.reader(fd) for fd in fds]
        times = []
        for _ in range(20):  # the best of them is the kernel's; the others are the machine's
            start = time.perf_counter()
            mapping = memory.map(readers, (1 << 30,) * 2, writable=False)
            times.append(time.perf_counter() - start)
            mapping.close()
        assert min(times) < 0.010
        fdpass.close_all([*fds, *readers])


class TestReadOnly:
    def test_the_same_addresses_hold_the_same_bytes_without_write_access(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        mapping.buffer(2 * MIB - 2, 4)[:] = b"abcd"
        address = mapping.address
        assert mapped_at(address)[1] == "rw-s"
        mapping.make_read_only(regions)
        assert mapping.address == address
        for at in (address, address + 2 * MIB):
            assert mapped_at(at)[1] == "r--s"
        assert ctypes.string_at(address + 2 * MIB - 2, 4) == b"abcd"
        assert mapping.buffer(0, 1).readonly
        mapping.close()

    def test_other_regions_are_refused_and_nothing_changes(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        with pytest.raises(DeviceError, match="not the mapping's regions"):
            mapping.make_read_only(regions[::-1])
        assert mapped_at(mapping.address)[1] == "rw-s"
        mapping.buffer(0, 1)[:] = b"x"
        mapping.close()

    def test_a_write_kills_the_writer_only(self, regions: list[int]) -> None:
        code = (
            "import ctypes, sys; from ling_api.memory.memfd import MemfdMemory\n"
            "fd = int(sys.argv[1]); mapping = MemfdMemory().map([fd], [2 << 20], writable=True)\n"
            "mapping.buffer(0, 1)[:] = b'a'; mapping.make_read_only([fd]); ctypes.memset(mapping.address, 98, 1)"
        )
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.run([sys.executable, "-c", code, str(regions[0])], pass_fds=regions, env=env, timeout=150)
        assert child.returncode == -11
        assert os.pread(regions[0], 1, 0) == b"a"


class TestSeal:
    def test_waits_for_no_writer_but_names_one(self, regions: list[int]) -> None:
        mapping = MemfdMemory().map(regions, SIZES, writable=True)
        with pytest.raises(WriterLeft, match="still mapped writable"):
            memfd.seal(regions[0])
        assert not memfd.sealed(regions[0])
        mapping.make_read_only(regions)
        memfd.seal(regions[0])
        memfd.seal(regions[0])  # a new agent seals what its predecessor may have sealed
        assert memfd.sealed(regions[0])
        assert fcntl.fcntl(regions[0], fcntl.F_GET_SEALS) & SEALS == SEALS
        mapping.close()

    def test_a_sealed_region_takes_no_write_no_writable_map_and_no_other_size(self, regions: list[int]) -> None:
        memfd.seal(regions[0])
        with pytest.raises(PermissionError):
            os.pwrite(regions[0], b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(regions[0], 2 * MIB)
        with pytest.raises(PermissionError):
            os.ftruncate(regions[0], 0)

    def test_a_reader_cannot_write_even_before_the_seal(self, regions: list[int]) -> None:
        fd = memfd.reader(regions[0])
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert os.fstat(fd).st_ino == os.fstat(regions[0]).st_ino
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 2 * MIB)
        os.close(fd)

    @pytest.mark.parametrize("call", [memfd.seal, memfd.reader, memfd.sealed], ids=lambda call: call.__name__)
    def test_a_stranger_s_descriptor_is_refused_at_once(self, call: object) -> None:
        ends = os.pipe()
        for fd in ends:
            with pytest.raises(FillFailed):
                call(fd)  # type: ignore[operator]
        fdpass.close_all(ends)
