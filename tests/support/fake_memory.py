"""A second memory backend, as strict as a device driver: it checks every call, and the host cannot reach its bytes.

Regions live in a `FakeDevice`, shared by all ranks of a test. As with CUDA only the rank that made a region may map it
writable, an importer can make none, addresses mean nothing to the host (`buffer` copies), and holders keep bare
descriptors. A wrong call raises DeviceError; `FakeDevice.finish` tells what was left open.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING

from ling_api.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOM = 1 << 20


@dataclass(eq=False)
class FakeRegion:
    number: int
    size: int
    maker: FakeRank
    data: bytearray


@dataclass(eq=False)
class FakeDevice:
    """The memory that all ranks share, and the record of what they have open."""

    regions: dict[tuple[int, int], FakeRegion] = field(default_factory=dict)
    mappings: list[FakeMapping] = field(default_factory=list)
    shown: dict[int, FakeRegion] = field(default_factory=dict)  # descriptor numbers that a rank was seen with
    addresses: count = field(default_factory=lambda: count(0x7000_0000_0000, 1 << 32))
    numbers: count = field(default_factory=count)
    calls: list[str] = field(default_factory=list)

    def region_of(self, fd: int) -> FakeRegion:
        stat = os.fstat(fd)
        region = self.regions.get((stat.st_dev, stat.st_ino))
        if region is None:
            raise DeviceError(f"descriptor {fd} is no region of this device")
        self.shown[fd] = region
        return region

    def kept(self) -> list[int]:
        """The descriptors that ranks created or mapped and have not closed."""
        kept = []
        for fd, region in self.shown.items():
            try:
                stat = os.fstat(fd)
            except OSError:
                continue
            if self.regions.get((stat.st_dev, stat.st_ino)) is region:
                kept.append(fd)
        return kept

    def finish(self) -> None:
        """Raises AssertionError when a mapping or a rank's descriptor is still open."""
        assert not [mapping for mapping in self.mappings if not mapping.closed], "a mapping was left open"
        assert not self.kept(), f"descriptors {self.kept()} were kept after they were mapped"


@dataclass(eq=False)
class FakeRank:
    """A RankMemory. Only a filling rank may create regions."""

    device: FakeDevice
    filling: bool
    kind: str = "cuda"
    granularity: int = 4096
    max_region: int = 64 << 10

    def create(self, size: int) -> int:
        self.device.calls.append("create")
        if not self.filling:
            raise DeviceError("only a filling rank can make regions")
        if size <= 0 or size % self.granularity or size > self.max_region:
            raise DeviceError(f"a region of {size} bytes")
        fd = os.memfd_create("fake-region", os.MFD_CLOEXEC)
        stat = os.fstat(fd)
        region = FakeRegion(next(self.device.numbers), size, self, bytearray(size))
        self.device.regions[stat.st_dev, stat.st_ino] = self.device.shown[fd] = region
        return fd

    def map(self, fds: Sequence[int], sizes: Sequence[int], *, writable: bool) -> FakeMapping:
        self.device.calls.append("map writable" if writable else "map")
        regions = [self.device.region_of(fd) for fd in fds]
        if not regions or [region.size for region in regions] != list(sizes):
            raise DeviceError("the regions have other sizes")
        if any(one.number >= two.number for one, two in pairwise(regions)):
            raise DeviceError("the regions come in the wrong order")
        if writable and not (self.filling and all(region.maker is self for region in regions)):
            raise DeviceError("only the rank that made the regions may map them writable")
        mapping = FakeMapping(self, regions, writable)
        self.device.mappings.append(mapping)
        return mapping


class FakeMapping:
    """A Mapping whose bytes the host cannot address; `write` is what a kernel of the process would do."""

    def __init__(self, rank: FakeRank, regions: list[FakeRegion], writable: bool) -> None:
        self._rank = rank
        self._regions = regions
        self._writable = writable
        self._end = sum(region.size for region in regions) + (ROOM if writable else 0)
        self.closed = False
        self.device = "cuda:0"
        self.address = next(rank.device.addresses)

    @property
    def size(self) -> int:
        return sum(region.size for region in self._regions)

    def extend(self, fd: int, size: int) -> None:
        self._check_open("extend")
        region = self._rank.device.region_of(fd)
        if not self._writable or region.maker is not self._rank:
            raise DeviceError("only the filler may extend, and only before it gave up write access")
        if region.size != size or self.size + size > self._end or region.number <= self._regions[-1].number:
            raise DeviceError("the tail has another size or order, or no room")
        self._regions.append(region)

    def make_read_only(self, fds: Sequence[int]) -> None:
        self._check_open("make_read_only")
        if not self._writable:
            raise DeviceError("the mapping is read-only already")
        if [self._rank.device.region_of(fd) for fd in fds] != self._regions:
            raise DeviceError("these are not the mapping's regions in their order")
        self._writable = False

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        self._check_open("buffer")
        self._check_inside(offset, nbytes)
        return memoryview(b"".join(region.data for region in self._regions)[offset : offset + nbytes])

    def write(self, offset: int, data: bytes) -> None:
        self._check_open("write")
        self._check_inside(offset, len(data))
        if not self._writable:
            raise DeviceError("a write to memory mapped read-only")
        for region in self._regions:
            if offset < region.size and data:
                part = data[: region.size - offset]
                region.data[offset : offset + len(part)] = part
                data, offset = data[len(part) :], 0
            else:
                offset -= region.size if data else 0

    def close(self) -> None:
        self._check_open("close")
        self.closed = True

    def _check_open(self, call: str) -> None:
        self._rank.device.calls.append(call)
        if self.closed:
            raise DeviceError("the mapping is closed already")

    def _check_inside(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise DeviceError(f"bytes {offset} to {offset + nbytes} are not inside a mapping of {self.size}")
