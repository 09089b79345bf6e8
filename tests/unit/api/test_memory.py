"""One flow over every backend: create, deposit, fill, give up writing, seal, attach. And each wrong call."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.descriptors import none_leaked
from tests.support.fake_cuda import FakeCuda, FakeGpu
from tests.support.fake_memory import FakeDevice, FakeRank

from ling_api import checks, fdpass
from ling_api.errors import AttachCheckFailed, BadInput, DeviceError, WriterLeft
from ling_api.identity import Identity
from ling_api.manifest import Manifest, TensorSpec, plan_layout
from ling_api.memory.base import holder
from ling_api.memory.cuda import CudaMapping, CudaMemory
from ling_api.memory.memfd import MemfdMapping, MemfdMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ling_api.memory.base import Mapping, RankMemory


class SmallMemfd(MemfdMemory):
    """The real one with small regions, so that tensors span them."""

    granularity = 4096
    max_region = 64 << 10


class SmallCuda(CudaMemory):
    """The real one too, on a driver in memory."""

    max_region = 64 << 10


@dataclass
class Backend:
    filler: RankMemory
    attacher: RankMemory
    write: Callable[[Any, int, bytes], None]
    finish: Callable[[], None]


def memfd_backend() -> Backend:
    def write(mapping: MemfdMapping, offset: int, data: bytes) -> None:
        try:
            mapping.buffer(offset, len(data))[:] = data
        except TypeError as error:  # a view that is not writable
            raise DeviceError(str(error)) from error

    return Backend(SmallMemfd(), SmallMemfd(), write, lambda: None)


def fake_backend() -> Backend:
    device = FakeDevice()
    return Backend(
        FakeRank(device, filling=True),
        FakeRank(device, filling=False),
        lambda mapping, offset, data: mapping.write(offset, data),
        device.finish,
    )


def cuda_backend() -> Backend:
    gpu = FakeGpu()
    filler, attacher = FakeCuda(gpu), FakeCuda(gpu)

    def write(mapping: CudaMapping, offset: int, data: bytes) -> None:
        driver = filler if mapping.address in filler.maps else attacher
        try:
            driver.store(mapping.address + offset, data)
        except PermissionError as error:
            raise DeviceError(str(error)) from error

    def finish() -> None:
        filler.finish()
        attacher.finish()

    return Backend(SmallCuda(driver=filler), SmallCuda(driver=attacher), write, finish)


@pytest.fixture(params=[memfd_backend, fake_backend, cuda_backend], ids=["memfd", "fake", "cuda"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend: Backend = request.param()
    with none_leaked():
        yield backend
        backend.finish()


SPECS = [
    TensorSpec("one", "float32", (1000,), (1,)),
    TensorSpec("spans", "bfloat16", (300, 256), (256, 1)),  # 150 KiB: over three regions
    TensorSpec("tied", "bfloat16", (300, 256), (256, 1), alias_of="spans"),
    TensorSpec("last", "uint8", (7,), (1,)),
]
TAIL = 8192


def pass_on(fds: Sequence[int]) -> list[int]:
    """What another process would hold after the descriptors were sent to it."""
    one, two = socket.socketpair()
    with one, two:
        fdpass.send(one, {"op": "deposit"}, fds)
        return fdpass.receive(two)[1]


def content(name: str, nbytes: int) -> bytes:
    return (name.encode() * (nbytes // len(name) + 1))[:nbytes]


def test_a_fill_is_an_attach_with_write_access(backend: Backend) -> None:
    layout = plan_layout(SPECS, granularity=backend.filler.granularity, max_region=backend.filler.max_region)
    assert len(layout.sizes) == 3
    own = [backend.filler.create(size) for size in layout.sizes]
    held = pass_on(own)  # deposited, and populated by whoever pays, before the first byte is written
    if backend.filler.kind == "memfd":
        for fd, size in zip(held, layout.sizes, strict=True):
            os.posix_fallocate(fd, 0, size)

    mapping = backend.filler.map(own, layout.sizes, writable=True)
    address = mapping.address
    for tensor in layout.tensors:
        if tensor.name != "tied":
            backend.write(mapping, tensor.offset, content(tensor.name, tensor.nbytes))
    tail = backend.filler.create(TAIL)
    held += pass_on([tail])
    mapping.extend(tail, TAIL)
    own.append(tail)
    backend.write(mapping, layout.nbytes, content("tail", TAIL))
    sizes = (*layout.sizes, TAIL)
    before = bytes(mapping.buffer(0, mapping.size))

    verbs = holder(backend.filler.kind)
    if backend.filler.kind == "memfd":
        with pytest.raises(WriterLeft, match="mapped writable"):
            verbs.seal(held[0])
    mapping.make_read_only(own)
    fdpass.close_all(own)
    assert (mapping.address, mapping.size) == (address, sum(sizes))
    assert bytes(mapping.buffer(0, mapping.size)) == before
    with pytest.raises(DeviceError):
        backend.write(mapping, 0, b"late")
    for fd in held:
        verbs.seal(fd)

    manifest = Manifest(
        identity=Identity.of("target", {"model": "test"}),
        rank=0,
        kind=backend.filler.kind,
        tensors=layout.tensors,
        regions=checks.checksum_regions(mapping, sizes),
    )
    attach_and_compare(backend, held, manifest, before)
    mapping.close()
    fdpass.close_all(held)


def attach_and_compare(backend: Backend, held: list[int], manifest: Manifest, before: bytes) -> None:
    readers = [holder(backend.filler.kind).reader(fd) for fd in held]
    came = pass_on(readers)
    fdpass.close_all(readers)
    sizes = [region.size for region in manifest.regions]
    attached = backend.attacher.map(came, sizes, writable=False)
    fdpass.close_all(came)  # by a rank right after mapping
    assert bytes(attached.buffer(0, attached.size)) == before
    checks.verify(attached, Manifest.from_bytes(manifest.to_bytes()))
    spans = next(tensor for tensor in manifest.tensors if tensor.name == "spans")
    assert bytes(attached.buffer(spans.offset, spans.nbytes)) == content("spans", spans.nbytes)
    with pytest.raises(DeviceError):
        backend.write(attached, 0, b"never")
    attached.close()


@pytest.fixture
def filled(backend: Backend) -> Iterator[tuple[Backend, list[int], Mapping]]:
    fds = [backend.filler.create(8192), backend.filler.create(4096)]
    mapping = backend.filler.map(fds, [8192, 4096], writable=True)
    yield backend, fds, mapping
    fdpass.close_all(fds)
    mapping.close()


def extend_after_read_only(backend: Backend, fds: list[int], mapping: Mapping) -> None:
    mapping.make_read_only(fds)
    mapping.extend(fds[0], 8192)


WRONG: dict[str, Callable[[Backend, list[int], Any], object]] = {
    "create: nothing": lambda b, fds, m: b.filler.create(0),
    "create: odd size": lambda b, fds, m: b.filler.create(4097),
    "map: nothing": lambda b, fds, m: b.attacher.map([], [], writable=False),
    "map: sizes swapped": lambda b, fds, m: b.attacher.map(fds, [4096, 8192], writable=False),
    "map: sizes missing": lambda b, fds, m: b.attacher.map(fds, [8192], writable=False),
    "read-only: one missing": lambda b, fds, m: m.make_read_only(fds[:1]),
    "extend: other size": lambda b, fds, m: m.extend(fds[0], 4096),
    "extend: after read-only": extend_after_read_only,
    "buffer: behind the end": lambda b, fds, m: m.buffer(8192, 4097),
    "buffer: before the start": lambda b, fds, m: m.buffer(-1, 4),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_a_device_error(
    filled: tuple[Backend, list[int], Mapping], call: Callable[[Backend, list[int], Any], object]
) -> None:
    with pytest.raises(DeviceError):
        call(*filled)


@pytest.mark.parametrize("order", [(1, 0), (0, 0)], ids=["wrong order", "another region"])
def test_read_only_takes_the_mappings_own_regions(
    filled: tuple[Backend, list[int], Mapping], order: tuple[int, int]
) -> None:
    backend, fds, mapping = filled
    chosen = [fds[number] for number in order]
    if isinstance(backend.filler, CudaMemory):  # access is the mapping's there, whatever the descriptors are
        mapping.make_read_only(chosen)
        assert isinstance(mapping, CudaMapping)
        with pytest.raises(DeviceError):
            backend.write(mapping, 0, b"late")
        return
    with pytest.raises(DeviceError):
        mapping.make_read_only(chosen)


def test_a_closed_mapping_takes_no_call(backend: Backend) -> None:
    fd = backend.filler.create(4096)
    mapping = backend.filler.map([fd], [4096], writable=True)
    os.close(fd)
    mapping.close()
    with pytest.raises(DeviceError):
        mapping.close()
    with pytest.raises(DeviceError):
        mapping.buffer(0, 1)


class TestOnlyTheStrictOneSees:
    """What memfd would let pass, and a driver would not."""

    @pytest.fixture
    def device(self) -> FakeDevice:
        return FakeDevice()

    @pytest.fixture
    def filler(self, device: FakeDevice) -> FakeRank:
        return FakeRank(device, filling=True)

    def test_an_attaching_rank_creates_nothing(self, device: FakeDevice) -> None:
        with pytest.raises(DeviceError, match="only a filling rank"):
            FakeRank(device, filling=False).create(4096)

    def test_a_foreign_descriptor_is_refused(self, filler: FakeRank) -> None:
        fd = os.memfd_create("foreign")
        with pytest.raises(DeviceError, match="no region of this device"):
            filler.map([fd], [4096], writable=False)
        os.close(fd)

    def test_nobody_else_maps_writable(self, device: FakeDevice, filler: FakeRank) -> None:
        fd = filler.create(4096)
        with pytest.raises(DeviceError, match="may map them writable"):
            FakeRank(device, filling=True).map([fd], [4096], writable=True)
        os.close(fd)

    def test_the_order_of_regions_counts(self, filler: FakeRank) -> None:
        fds = [filler.create(4096), filler.create(4096)]
        with pytest.raises(DeviceError, match="order"):
            filler.map(fds[::-1], [4096, 4096], writable=True)
        fdpass.close_all(fds)

    def test_what_is_left_open_is_told(self, device: FakeDevice, filler: FakeRank) -> None:
        fd = filler.create(4096)
        mapping = filler.map([fd], [4096], writable=True)
        with pytest.raises(AssertionError, match="mapping was left open"):
            device.finish()
        mapping.close()
        with pytest.raises(AssertionError, match="kept after they were mapped"):
            device.finish()
        os.close(fd)
        device.finish()


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="known are memfd, cuda"):
        holder("disk")


def test_a_changed_byte_is_found_and_named() -> None:
    memory = SmallMemfd()
    layout = plan_layout(SPECS, granularity=memory.granularity, max_region=memory.max_region)
    fds = [memory.create(size) for size in layout.sizes]
    mapping = memory.map(fds, layout.sizes, writable=True)
    manifest = Manifest(
        identity=Identity.of("target", {}),
        rank=0,
        kind="memfd",
        tensors=layout.tensors,
        regions=checks.checksum_regions(mapping, layout.sizes),
    )
    checks.verify(mapping, manifest)
    spans = layout.tensors[1]
    mapping.buffer(spans.offset + (70 << 10), 1)[:] = b"x"
    with pytest.raises(AttachCheckFailed, match=r"region 1, chunk 0 .* holds spans, tied$"):
        checks.verify(mapping, manifest)
    checks.verify(mapping, manifest, [checks.Chunk(0, 0), checks.Chunk(2, 0)])
    mapping.close()
    fdpass.close_all(fds)
