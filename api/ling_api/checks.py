"""Checksums of a weight set: computed once when it is filled, compared when it is attached, in full or by sample.

Host memory has a crc32 a chunk. Memory of a device has a sum64 a chunk, which the device makes itself in one pass
(60 GiB in some 15 ms) where copying the bytes out would take seconds; every single flipped bit changes either.
"""

from __future__ import annotations

import array
import hashlib
import operator
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ling_api.errors import AttachCheckFailed, BadInput
from ling_api.manifest import CHUNK, CRC32, SUM64, RegionEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ling_api.manifest import Manifest
    from ling_api.memory.base import Mapping


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """4 MiB of a region (the last chunk of a region may be shorter)."""

    region: int
    index: int


@runtime_checkable
class SumsItself(Protocol):
    """A mapping whose device makes the sum64 of every chunk from `offset` on. Raises DeviceError."""

    def sums(self, offset: int, nbytes: int) -> Sequence[int]: ...


def checksum_regions(mapping: Mapping, sizes: Sequence[int]) -> tuple[RegionEntry, ...]:
    """Reads every byte once; one entry per region, `sizes` in bytes. crc32 of host memory, sum64 of a device's."""
    checksum = CRC32 if mapping.device == "cpu" else SUM64
    entries = []
    start = 0
    for size in sizes:
        entries.append(RegionEntry(size, tuple(_sums(mapping, checksum, start, size))))
        start += size
    return tuple(entries)


def sum64(data: bytes | memoryview) -> int:
    """Of the data's 64-bit words w[i] (little-endian): the sum of w[i] * (2 i + 1), modulo 2^64. Raises BadInput."""
    if len(data) % 8:
        raise BadInput(f"{len(data)} bytes are no whole number of 64-bit words")
    words = array.array("Q", bytes(data))
    if sys.byteorder == "big":
        words.byteswap()
    total: int = sum(map(operator.mul, words, range(1, 2 * len(words), 2)))
    return total % (1 << 64)


def before_serving(manifest: Manifest, *, sample: int) -> tuple[Chunk, ...] | None:
    """What an attacher compares before it serves: `sample` chunks of host memory, all (None) of a device's."""
    if manifest.kind == "cuda":
        return None
    return sample_plan(manifest.regions, seed=manifest.set_id, count=sample)


def all_chunks(regions: Iterable[RegionEntry]) -> tuple[Chunk, ...]:
    """Every chunk, in address order."""
    return tuple(
        Chunk(number, index) for number, region in enumerate(regions) for index in range(len(region.checksums))
    )


def sample_plan(regions: Iterable[RegionEntry], *, seed: str, count: int) -> tuple[Chunk, ...]:
    """`count` chunks (or all, if there are fewer) in address order; the same for the same seed, spread by hash."""
    chunks = all_chunks(regions)
    drawn = sorted(chunks, key=lambda chunk: hashlib.sha256(f"{seed}:{chunk.region}:{chunk.index}".encode()).digest())
    return tuple(sorted(drawn[: max(count, 0)]))


def verify(mapping: Mapping, manifest: Manifest, chunks: Iterable[Chunk] | None = None) -> None:
    """Compares the chunks (all by default) with the manifest.

    Raises AttachCheckFailed that names the first wrong chunk and the tensors that touch it, or a wrong size.
    """
    if mapping.size != manifest.nbytes:
        raise AttachCheckFailed(f"the mapping has {mapping.size} bytes; the manifest says {manifest.nbytes}")
    starts = _starts(manifest.regions)
    for first, count in _whole(manifest.regions) if chunks is None else _runs(chunks):
        region = manifest.regions[first.region]
        start = starts[first.region] + first.index * CHUNK
        nbytes = min(count * CHUNK, region.size - first.index * CHUNK)
        wanted = region.checksums[first.index : first.index + count]
        found = tuple(_sums(mapping, manifest.checksum, start, nbytes))
        if found != wanted:
            number = next(at for at, (one, two) in enumerate(zip(found, wanted, strict=True)) if one != two)
            at = start + number * CHUNK
            raise _wrong(manifest, Chunk(first.region, first.index + number), at, min(CHUNK, start + nbytes - at))


def _sums(mapping: Mapping, checksum: str, offset: int, nbytes: int) -> Iterator[int]:
    """The checksum of every chunk from `offset` on."""
    if checksum == SUM64 and isinstance(mapping, SumsItself):
        yield from mapping.sums(offset, nbytes)
        return
    one = sum64 if checksum == SUM64 else zlib.crc32
    for at in range(offset, offset + nbytes, CHUNK):
        yield one(mapping.buffer(at, min(CHUNK, offset + nbytes - at)))


def _whole(regions: Iterable[RegionEntry]) -> Iterator[tuple[Chunk, int]]:
    for number, region in enumerate(regions):
        yield Chunk(number, 0), len(region.checksums)


def _runs(chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, int]]:
    """Chunks that follow each other in one region, as the first and how many: one call for the device."""
    first, count = None, 0
    for chunk in chunks:
        if first is not None and chunk == Chunk(first.region, first.index + count):
            count += 1
            continue
        if first is not None:
            yield first, count
        first, count = chunk, 1
    if first is not None:
        yield first, count


def _wrong(manifest: Manifest, chunk: Chunk, start: int, nbytes: int) -> AttachCheckFailed:
    names = ", ".join(_touching(manifest, start, start + nbytes)) or "no tensor"
    return AttachCheckFailed(
        f"region {chunk.region}, chunk {chunk.index} of the {manifest.identity.role} weights "
        f"(set {manifest.set_id}) has a wrong checksum; it holds {names}"
    )


def _starts(regions: Sequence[RegionEntry]) -> list[int]:
    starts = [0]
    for region in regions:
        starts.append(starts[-1] + region.size)
    return starts


def _touching(manifest: Manifest, start: int, end: int) -> Iterator[str]:
    for tensor in manifest.tensors:
        if tensor.offset < end and tensor.offset + tensor.nbytes > start:
            yield tensor.name
