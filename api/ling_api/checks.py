"""Checksums of a weight set: computed once when it is filled, compared when it is attached, in full or by sample."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api.errors import AttachCheckFailed
from ling_api.manifest import CHUNK, RegionEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ling_api.manifest import Manifest
    from ling_api.memory.base import Mapping


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """4 MiB of a region (the last chunk of a region may be shorter)."""

    region: int
    index: int


def checksum_regions(mapping: Mapping, sizes: Sequence[int]) -> tuple[RegionEntry, ...]:
    """Reads every byte once; one entry per region, `sizes` in bytes."""
    entries = []
    start = 0
    for size in sizes:
        checksums = tuple(_crc(mapping, start + at, min(CHUNK, size - at)) for at in range(0, size, CHUNK))
        entries.append(RegionEntry(size, checksums))
        start += size
    return tuple(entries)


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
    for chunk in all_chunks(manifest.regions) if chunks is None else chunks:
        region = manifest.regions[chunk.region]
        start = starts[chunk.region] + chunk.index * CHUNK
        nbytes = min(CHUNK, region.size - chunk.index * CHUNK)
        if _crc(mapping, start, nbytes) != region.checksums[chunk.index]:
            names = ", ".join(_touching(manifest, start, start + nbytes)) or "no tensor"
            raise AttachCheckFailed(
                f"region {chunk.region}, chunk {chunk.index} of the {manifest.identity.role} weights "
                f"(set {manifest.set_id}) has a wrong checksum; it holds {names}"
            )


def _crc(mapping: Mapping, offset: int, nbytes: int) -> int:
    return zlib.crc32(mapping.buffer(offset, nbytes))


def _starts(regions: Sequence[RegionEntry]) -> list[int]:
    starts = [0]
    for region in regions:
        starts.append(starts[-1] + region.size)
    return starts


def _touching(manifest: Manifest, start: int, end: int) -> Iterator[str]:
    for tensor in manifest.tensors:
        if tensor.offset < end and tensor.offset + tensor.nbytes > start:
            yield tensor.name
