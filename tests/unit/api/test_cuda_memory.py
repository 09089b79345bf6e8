"""The CUDA backend against a driver in memory: what it asks for, what it says, what it leaves. (GPU: tests/gpu.)"""

from __future__ import annotations

import array
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.descriptors import none_leaked
from tests.support.fake_cuda import GRANULARITY, FakeCuda, FakeGpu

from ling_api import checks, fdpass
from ling_api.errors import DeviceError
from ling_api.manifest import CHUNK
from ling_api.memory import cuda_sums
from ling_api.memory.cuda import CudaMapping, CudaMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = [GRANULARITY, 3 * GRANULARITY]
SECOND = "GPU-00000000-0000-0000-0000-000000000002"


class Small(CudaMemory):
    max_region = 4 * GRANULARITY


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def driver(gpu: FakeGpu) -> Iterator[FakeCuda]:
    driver = FakeCuda(gpu)
    with none_leaked():
        yield driver
        driver.finish()


@pytest.fixture
def memory(driver: FakeCuda) -> CudaMemory:
    return Small(driver=driver)


@pytest.fixture
def mapping(memory: CudaMemory) -> Iterator[CudaMapping]:
    fds = [memory.create(size) for size in SIZES]
    mapping = memory.map(fds, SIZES, writable=True)
    fdpass.close_all(fds)
    yield mapping
    mapping.close()


class TestTheDevice:
    @pytest.mark.parametrize(("device", "name"), [(1, "cuda:1"), (SECOND, "cuda:1"), (0, "cuda:0")])
    def test_is_found_by_ordinal_and_uuid(self, gpu: FakeGpu, device: int | str, name: str) -> None:
        memory = CudaMemory(device, driver=FakeCuda(gpu, devices=2))
        assert (memory.device, memory.granularity) == (name, GRANULARITY)
        assert memory.uuid.endswith(str(int(name[-1]) + 1))

    @pytest.mark.parametrize(
        ("device", "devices", "sentence"),
        [
            (0, 0, "cannot start CUDA: CUDA_ERROR_NO_DEVICE; no GPU is visible here: give the container one"),
            (5, 2, "cannot use GPU 5: CUDA_ERROR_INVALID_DEVICE; no such GPU here"),
            ("GPU-7", 1, "no GPU 'GPU-7' is visible here; there are GPU-00000000-0000-0000-0000-000000000001"),
        ],
        ids=["none", "ordinal", "uuid"],
    )
    def test_that_is_not_there_is_named(self, gpu: FakeGpu, device: int | str, devices: int, sentence: str) -> None:
        with pytest.raises(DeviceError, match=sentence):
            CudaMemory(device, driver=FakeCuda(gpu, devices=devices))

    def test_needs_a_package_that_is_named(self) -> None:
        code = (
            "import sys; sys.modules['cuda'] = None\n"
            "from ling_api.memory.cuda import CudaMemory\n"
            "from ling_api.errors import DeviceError\n"
            "try: CudaMemory()\n"
            "except DeviceError as error: print(error, 'torch' in sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "needs the package cuda-bindings" in done.stdout
        assert "install ling[cuda]" in done.stdout
        assert done.stdout.strip().endswith("False")


class TestErrors:
    def test_say_the_drivers_name_and_what_to_do(self, memory: CudaMemory, driver: FakeCuda) -> None:
        driver.gpu.memory = GRANULARITY
        with pytest.raises(
            DeviceError, match=r"cannot allocate 0 MiB on cuda:0 \(GPU-.*\): CUDA_ERROR_OUT_OF_MEMORY; .*full"
        ):
            memory.create(2 * GRANULARITY)

    @pytest.mark.parametrize(
        ("devices", "named"),
        [(2, "memory of cuda:1, not of cuda:0"), (1, "a GPU that this process does not see, not of")],
    )
    def test_memory_of_another_gpu_is_refused(self, gpu: FakeGpu, devices: int, named: str) -> None:
        fd = Small(1, driver=FakeCuda(gpu, devices=2)).create(GRANULARITY)
        with pytest.raises(DeviceError, match=named):
            Small(0, driver=FakeCuda(gpu, devices=devices)).map([fd], [GRANULARITY], writable=False)
        os.close(fd)

    def test_a_foreign_descriptor_is_refused(self, memory: CudaMemory) -> None:
        fd = os.memfd_create("foreign")
        with pytest.raises(DeviceError, match=r"import a region .* CUDA_ERROR_INVALID_VALUE; .*no memory of a GPU"):
            memory.map([fd], [GRANULARITY], writable=False)
        os.close(fd)


def life(memory: CudaMemory, fds: list[int]) -> None:
    """Every call once; `fds` are the caller's to close."""
    fds.extend(memory.create(size) for size in SIZES)
    mapping = memory.map(fds, SIZES, writable=True)
    try:
        fds.append(memory.create(GRANULARITY))
        mapping.extend(fds[-1], GRANULARITY)
        mapping.make_read_only(fds)
        mapping.buffer(0, mapping.size)
        mapping.sums(0, mapping.size)
    finally:
        mapping.close()


# Where the driver itself refuses to give something back, that is left, and nothing else.
KEPT = {"cuMemUnmap": 1, "cuMemAddressFree": 1, "cuCtxPushCurrent": len(SIZES) + 2}


def test_whatever_fails_nothing_is_left(gpu: FakeGpu) -> None:
    whole = FakeCuda(gpu)
    fds: list[int] = []
    life(Small(driver=whole), fds)
    fdpass.close_all(fds)
    whole.finish()
    assert len(whole.calls) > 40
    closing = len(whole.calls) - whole.calls[::-1].index("cuCtxPushCurrent")
    for number, name in enumerate(whole.calls, 1):
        driver = FakeCuda(gpu, fail_at=number)
        fds = []
        with none_leaked():
            with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
                life(Small(driver=driver), fds)
            fdpass.close_all(fds)
            kept = KEPT.get(name, 0) if number >= closing else 0
            assert (number, name, len(driver.maps) + len(driver.ranges)) == (number, name, kept)
            for mapped in driver.maps.values():
                mapped.bytes.close()
            driver.maps.clear()
            driver.ranges.clear()
            driver.finish()


def test_a_lost_context_is_told_at_the_end_too(gpu: FakeGpu) -> None:
    driver = FakeCuda(gpu)
    memory = Small(driver=driver)
    fd = memory.create(GRANULARITY)
    mapping = memory.map([fd], [GRANULARITY], writable=False)
    os.close(fd)
    driver.lost = True
    with pytest.raises(DeviceError):
        mapping.close()
    assert not driver.ranges
    with pytest.raises(DeviceError, match="closed already"):
        mapping.close()
    driver.maps.popitem()[1].bytes.close()


class TestMapping:
    def test_access_is_given_up_after_the_queued_work(self, mapping: CudaMapping, driver: FakeCuda) -> None:
        driver.store(mapping.address, b"before")
        del driver.calls[:]
        mapping.make_read_only([1, 2])
        assert driver.calls == ["cuCtxPushCurrent", "cuCtxSynchronize", "cuMemSetAccess"]
        with pytest.raises(PermissionError):
            driver.store(mapping.address, b"after")
        assert bytes(mapping.buffer(0, 6)) == b"before"

    def test_tells_its_phases(self, mapping: CudaMapping) -> None:
        assert set(mapping.phases) == {"import", "reserve", "map", "access"}
        assert all(0 <= ms < 1000 for ms in mapping.phases.values())

    def test_no_descriptor_reaches_a_child(self, memory: CudaMemory) -> None:
        fd = memory.create(GRANULARITY)
        assert not os.get_inheritable(fd)
        os.close(fd)


class TestSums:
    def test_are_the_devices(self, mapping: CudaMapping, driver: FakeCuda) -> None:
        data = random.Random(1).randbytes(mapping.size)
        driver.store(mapping.address, data)
        regions = checks.checksum_regions(mapping, SIZES)
        assert [region.checksums for region in regions] == [
            (checks.sum64(data[: SIZES[0]]),),
            (checks.sum64(data[SIZES[0] :]),),
        ]
        assert driver.calls.count("cuLaunchKernel") == len(SIZES)
        assert driver.calls.count("cuModuleLoadData") == 1

    @pytest.mark.parametrize(("offset", "nbytes"), [(8, 16), (0, 24), (0, 5 * GRANULARITY), (-16, 16)])
    def test_need_whole_units_inside(self, mapping: CudaMapping, offset: int, nbytes: int) -> None:
        with pytest.raises(DeviceError):
            mapping.sums(offset, nbytes)

    def test_of_nothing_are_none(self, mapping: CudaMapping) -> None:
        assert mapping.sums(0, 0) == []

    def test_sum64_is_what_its_description_says(self) -> None:
        data = random.Random(2).randbytes(4096)
        words = array.array("Q", data)
        assert checks.sum64(data) == sum(word * (2 * i + 1) for i, word in enumerate(words)) % 2**64

    def test_every_flipped_bit_and_every_swap_is_seen(self) -> None:
        data = bytearray(random.Random(3).randbytes(256))
        whole = checks.sum64(bytes(data))
        for bit in range(8 * len(data)):
            data[bit // 8] ^= 1 << bit % 8
            assert checks.sum64(bytes(data)) != whole
            data[bit // 8] ^= 1 << bit % 8
        assert checks.sum64(bytes(data[8:16] + data[:8] + data[16:])) != whole

    def test_the_shipped_kernel_is_made_of_the_source_beside_it(self) -> None:
        source = cuda_sums.KERNEL.with_name("sum64.cu").read_bytes()
        first = cuda_sums.KERNEL.read_text().splitlines()[0]
        assert first.endswith(hashlib.sha256(source).hexdigest()), "run hack/generate-kernel"
        assert f"THREADS = {cuda_sums._THREADS};".encode() in source

    def test_the_kernel_is_in_the_wheel(self) -> None:
        packages = (Path(__file__).parents[3] / "pyproject.toml").read_text()
        assert '"api/ling_api"' in packages  # whole folders: also what is no Python
        assert cuda_sums.KERNEL.is_file()
        assert CHUNK % cuda_sums._UNIT == 0
