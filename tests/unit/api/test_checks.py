"""Which chunks are compared, and what a wrong one is called. (A real flipped byte: test_memory.py.)"""

from __future__ import annotations

import dataclasses
import zlib

import pytest

from ling_api import checks
from ling_api.checks import Chunk
from ling_api.errors import AttachCheckFailed
from ling_api.identity import Identity
from ling_api.manifest import CHUNK, Manifest, RegionEntry, TensorSpec, plan_layout


class Bytes:
    """As much of a mapping as checksums need."""

    device = "cpu"
    address = 0

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.read: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return len(self.data)

    def buffer(self, offset: int, nbytes: int) -> memoryview:
        self.read.append((offset, nbytes))
        return memoryview(self.data)[offset : offset + nbytes]


class Device(Bytes):
    """The same on a device that sums its own chunks."""

    device = "cuda:0"

    def sums(self, offset: int, nbytes: int) -> list[int]:
        self.read.append((offset, nbytes))
        ends = range(offset, offset + nbytes, CHUNK)
        return [checks.sum64(self.data[at : min(at + CHUNK, offset + nbytes)]) for at in ends]


SIZES = (CHUNK + 4096, CHUNK)


@pytest.fixture
def mapping() -> Bytes:
    return Bytes(bytes(range(256)) * (sum(SIZES) // 256))


@pytest.fixture
def manifest(mapping: Bytes) -> Manifest:
    layout = plan_layout(
        [TensorSpec("first", "int8", (100,), (1,)), TensorSpec("second", "int8", (CHUNK + 4096,), (1,))],
        granularity=4096,
        max_region=SIZES[0],
    )
    regions = checks.checksum_regions(mapping, SIZES)  # type: ignore[arg-type]
    mapping.read.clear()
    return Manifest(identity=Identity.of("nextn", {}), rank=1, kind="memfd", tensors=layout.tensors, regions=regions)


def test_every_chunk_has_its_crc32(mapping: Bytes, manifest: Manifest) -> None:
    data = mapping.data
    assert manifest.regions == (
        RegionEntry(SIZES[0], (zlib.crc32(data[:CHUNK]), zlib.crc32(data[CHUNK : CHUNK + 4096]))),
        RegionEntry(SIZES[1], (zlib.crc32(data[CHUNK + 4096 :]),)),
    )


def test_a_full_check_reads_every_byte_once(mapping: Bytes, manifest: Manifest) -> None:
    checks.verify(mapping, manifest)  # type: ignore[arg-type]
    assert mapping.read == [(0, CHUNK), (CHUNK, 4096), (CHUNK + 4096, CHUNK)]


def test_a_sample_reads_its_chunks_only(mapping: Bytes, manifest: Manifest) -> None:
    checks.verify(mapping, manifest, [Chunk(0, 1)])  # type: ignore[arg-type]
    assert mapping.read == [(CHUNK, 4096)]


@pytest.mark.parametrize(
    ("at", "named"),
    [
        (0, "region 0, chunk 0 of the nextn weights .* holds first, second$"),
        (CHUNK, "region 0, chunk 1 .* holds second$"),
        (CHUNK + 4096, "region 1, chunk 0 .* holds second$"),
    ],
    ids=["first chunk", "short chunk", "second region"],
)
def test_a_flipped_bit_is_named_with_the_tensors_that_it_hits(
    mapping: Bytes, manifest: Manifest, at: int, named: str
) -> None:
    mapping.data[at] ^= 1
    with pytest.raises(AttachCheckFailed, match=named):
        checks.verify(mapping, manifest)  # type: ignore[arg-type]


def test_a_chunk_without_a_tensor_is_named_too(mapping: Bytes, manifest: Manifest) -> None:
    mapping.data[-1] ^= 1
    with pytest.raises(AttachCheckFailed, match="it holds no tensor"):
        checks.verify(mapping, dataclasses.replace(manifest, tensors=()))  # type: ignore[arg-type]


def test_a_mapping_of_another_size_is_refused(mapping: Bytes, manifest: Manifest) -> None:
    del mapping.data[-1]
    with pytest.raises(AttachCheckFailed, match=f"has {sum(SIZES) - 1} bytes; the manifest says {sum(SIZES)}"):
        checks.verify(mapping, manifest)  # type: ignore[arg-type]


class TestOnADevice:
    @pytest.fixture
    def device(self, mapping: Bytes) -> Device:
        return Device(bytes(mapping.data))

    @pytest.fixture
    def sealed(self, device: Device, manifest: Manifest) -> Manifest:
        regions = checks.checksum_regions(device, SIZES)  # type: ignore[arg-type]
        device.read.clear()
        return dataclasses.replace(manifest, kind="cuda", checksum="", regions=regions)

    def test_every_chunk_has_its_sum64(self, device: Device, sealed: Manifest) -> None:
        assert sealed.checksum == "sum64"
        assert sealed.regions[1] == RegionEntry(CHUNK, (checks.sum64(bytes(device.data[CHUNK + 4096 :])),))

    def test_a_region_is_one_call(self, device: Device, sealed: Manifest) -> None:
        checks.verify(device, sealed)  # type: ignore[arg-type]
        assert device.read == [(0, CHUNK + 4096), (CHUNK + 4096, CHUNK)]

    def test_chunks_apart_are_calls_apart(self, device: Device, sealed: Manifest) -> None:
        checks.verify(device, sealed, [Chunk(0, 1), Chunk(1, 0)])  # type: ignore[arg-type]
        assert device.read == [(CHUNK, 4096), (CHUNK + 4096, CHUNK)]

    @pytest.mark.parametrize("at", [0, CHUNK, CHUNK + 4095, CHUNK + 4096, -1])
    def test_a_flipped_bit_is_named(self, device: Device, sealed: Manifest, at: int) -> None:
        device.data[at] ^= 0x80
        chunk = at // CHUNK if 0 <= at < CHUNK + 4096 else 0
        region = 0 if 0 <= at < CHUNK + 4096 else 1
        with pytest.raises(AttachCheckFailed, match=f"region {region}, chunk {chunk} of the nextn weights"):
            checks.verify(device, sealed)  # type: ignore[arg-type]

    def test_the_host_finds_the_same_sums_in_a_copy(self, mapping: Bytes, sealed: Manifest) -> None:
        checks.verify(mapping, sealed)  # type: ignore[arg-type]
        mapping.data[5] ^= 1
        with pytest.raises(AttachCheckFailed, match="region 0, chunk 0"):
            checks.verify(mapping, sealed)  # type: ignore[arg-type]

    def test_an_older_manifests_crc32_is_compared_by_copy(self, device: Device, manifest: Manifest) -> None:
        old = dataclasses.replace(manifest, kind="cuda", checksum="crc32")
        checks.verify(device, old)  # type: ignore[arg-type]
        device.data[-1] ^= 1
        with pytest.raises(AttachCheckFailed, match="region 1, chunk 0"):
            checks.verify(device, old)  # type: ignore[arg-type]

    def test_all_is_compared_before_serving_and_of_host_memory_a_sample(
        self, sealed: Manifest, manifest: Manifest
    ) -> None:
        assert checks.before_serving(sealed, sample=1) is None
        assert len(checks.before_serving(manifest, sample=1) or ()) == 1


class TestSamplePlan:
    REGIONS = tuple(RegionEntry(CHUNK * 50, (0,) * 50) for _ in range(4))

    def test_is_the_same_for_the_same_seed_and_in_address_order(self) -> None:
        plan = checks.sample_plan(self.REGIONS, seed="a", count=10)
        assert plan == checks.sample_plan(self.REGIONS, seed="a", count=10)
        assert list(plan) == sorted(set(plan))
        assert len(plan) == 10

    def test_another_seed_looks_elsewhere_until_all_is_seen(self) -> None:
        seen = {chunk for number in range(60) for chunk in checks.sample_plan(self.REGIONS, seed=str(number), count=20)}
        assert seen == set(checks.all_chunks(self.REGIONS))

    @pytest.mark.parametrize(("count", "length"), [(0, 0), (-1, 0), (200, 200), (1000, 200)])
    def test_takes_no_more_than_there_is(self, count: int, length: int) -> None:
        assert len(checks.sample_plan(self.REGIONS, seed="a", count=count)) == length
