"""The CUDA backend on a real GPU: what holds when processes share, write, die. (Its calls one by one: tests/unit.)"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.cuda_process import MIB, NAMESPACES, Process, attach, identity, layout_of, process
from tests.support.descriptors import none_leaked

from ling_api import checks, fdpass, sameregion
from ling_api.errors import AttachCheckFailed, DeviceError
from ling_api.manifest import CHUNK, Manifest, TensorSpec, plan_layout
from ling_api.memory.cuda import CudaMapping, CudaMemory
from ling_api.tensors import bind, specs_of, tensor_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

pytestmark = pytest.mark.timeout(300)
BIG = 60 << 30  # bytes
KERNELS = 256 * MIB  # at most: what torch loads meanwhile
NOBODY = 65534


class SmallRegions(CudaMemory):
    """The real one with small regions, so that tensors span them."""

    max_region = 16 * MIB


@pytest.fixture
def small() -> CudaMemory:
    return SmallRegions()


@dataclasses.dataclass
class Set:
    mapping: CudaMapping
    fds: list[int]
    manifest: Manifest

    def tensor(self, name: str) -> torch.Tensor:
        return tensor_at(self.mapping, next(one for one in self.manifest.tensors if one.name == name))


def made(memory: CudaMemory, specs: list[TensorSpec]) -> Set:
    """Regions for the specs, mapped writable; no checksums yet."""
    layout = plan_layout(specs, granularity=memory.granularity, max_region=memory.max_region)
    fds = [memory.create(size) for size in layout.sizes]
    mapping = memory.map(fds, layout.sizes, writable=True)
    regions = checks.checksum_regions(mapping, layout.sizes)
    return Set(
        mapping, fds, Manifest(identity=identity(), rank=0, kind="cuda", tensors=layout.tensors, regions=regions)
    )


def seal(one: Set) -> None:
    one.mapping.make_read_only(one.fds)
    sizes = [region.size for region in one.manifest.regions]
    one.manifest = dataclasses.replace(one.manifest, regions=checks.checksum_regions(one.mapping, sizes))


class TestTensors:
    SPECS = (
        TensorSpec("eight", "float8_e4m3fn", (1000, 3000), (3000, 1)),
        TensorSpec("turned", "bfloat16", (4096, 4096), (1, 4096)),  # 32 MiB: spans regions
        TensorSpec("other", "float8_e5m2", (77,), (1,)),
        TensorSpec("tied", "bfloat16", (4096, 4096), (1, 4096), alias_of="turned"),
        TensorSpec("wide", "float32", (5,), (1,)),
        TensorSpec("none", "bfloat16", (0, 8), (8, 1)),
    )

    def test_lie_in_the_mapping_and_nowhere_else(self, small: CudaMemory) -> None:
        import torch

        one = made(small, list(self.SPECS))
        for entry in one.manifest.tensors:
            tensor = tensor_at(one.mapping, entry)
            assert (str(tensor.dtype), tensor.shape, tensor.stride()) == (
                f"torch.{entry.dtype}",
                entry.shape,
                entry.stride,
            )
            assert tensor.device == torch.device("cuda:0")
            assert tensor.numel() == 0 or tensor.data_ptr() == one.mapping.address + entry.offset
            tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).fill_(7)
        eight = next(entry for entry in one.manifest.tensors if entry.name == "eight")
        assert bytes(one.mapping.buffer(eight.offset, 9)) == bytes([7] * 9)
        del tensor
        one.mapping.close()
        fdpass.close_all(one.fds)

    def test_bind_puts_a_module_of_meta_into_the_mapping(self, small: CudaMemory) -> None:
        import torch

        with torch.device("meta"):
            module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)).to(torch.bfloat16)
        one = made(small, specs_of(module))
        bind(module, one.mapping, one.manifest)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_()
        seal(one)
        places = [parameter.data_ptr() - one.mapping.address for parameter in module.parameters()]
        assert places == [entry.offset for entry in one.manifest.tensors]
        copy = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 8)).to("cuda", torch.bfloat16)
        copy.load_state_dict({name: tensor.clone() for name, tensor in module.state_dict().items()})
        x = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(module(x), copy(x))
        del module, parameter
        one.mapping.close()
        fdpass.close_all(one.fds)


def test_a_captured_graph_stays_right_when_write_access_is_given_up(small: CudaMemory) -> None:
    import torch

    one = made(small, list(TestTensors.SPECS))
    weight, eight = one.tensor("turned"), one.tensor("eight")
    weight.normal_()
    eight.copy_(torch.randn(eight.shape, device="cuda"))
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)

    def step(weight: torch.Tensor = weight, eight: torch.Tensor = eight) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ weight, eight.to(torch.bfloat16).sum(dim=0)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    graph.replay()
    before = [output.clone() for output in outputs]
    assert all(bool(output.any()) for output in before)

    addresses = weight.data_ptr(), eight.data_ptr()
    seal(one)
    for output in outputs:
        output.zero_()
    for _ in range(100):
        graph.replay()
    assert all(torch.equal(now, then) for now, then in zip(outputs, before, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(step(), before, strict=True))
    assert (weight.data_ptr(), eight.data_ptr()) == addresses
    checks.verify(one.mapping, one.manifest)
    del graph, step, weight, eight
    one.mapping.close()
    fdpass.close_all(one.fds)


@pytest.fixture
def filled() -> Iterator[tuple[Process, dict[str, Any], list[int]]]:
    """A process that filled and sealed a small set; its deposit, as the agent would hold it."""
    with process("fill") as filler:
        message, fds = filler.answer()
        yield filler, {"manifest": message["manifest"]}, fds
        fdpass.close_all(fds)


def test_a_late_write_fails_in_the_writer_alone(filled: tuple[Process, dict[str, Any], list[int]]) -> None:
    filler, sealed, fds = filled
    with process("attach") as reader, process("attach") as later:
        first, _ = reader.ask("set", fds, **sealed)
        fdpass.send(reader.socket, {"op": "watch"})
        assert reader.answer()[0]["op"] == "watching"
        wrote, _ = filler.ask("write")
        assert "CUDA_ERROR_INVALID_VALUE" in wrote["copy"]
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in wrote["kernel"]
        assert "end the process" in wrote["kernel"]
        seen, _ = reader.ask("enough")
        assert seen["passes"] >= 1
        assert seen["first"] == first["first"]
        assert later.ask("set", fds, **sealed)[0]["first"] == first["first"]


@pytest.mark.parametrize(
    ("prefix", "uid"),
    [((), 0), (NAMESPACES, 0), ((), NOBODY), (NAMESPACES, NOBODY)],
    ids=["plain", "own namespaces", "other uid", "own namespaces and other uid"],
)
def test_another_process_attaches_by_descriptors(
    filled: tuple[Process, dict[str, Any], list[int]], prefix: tuple[str, ...], uid: int
) -> None:
    if (prefix or uid) and os.getuid():
        pytest.skip("only root can make namespaces and other uids")
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    _, sealed, fds = filled
    with process("attach", prefix=prefix, uid=uid) as other:
        done, _ = other.ask("set", fds, **sealed)
        who = done["who"]
        assert who["uid"] == uid
        assert (who["pid"] <= 2) == bool(prefix)
        own = {name: Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "ipc")}
        assert all((who[name] != own[name]) == bool(prefix) for name in own)
        assert other.ask("close")[0]["ms"] < 1000
        assert other.end() == 0


def test_memory_outlives_its_maker_while_a_process_without_cuda_holds_it(
    gpu_memory: Callable[[], int], filled: tuple[Process, dict[str, Any], list[int]]
) -> None:
    filler, sealed, fds = filled
    with process("hold") as holder:
        kept, _ = holder.ask("keep", fds)
        fdpass.close_all(fds)
        fds.clear()
        assert kept["count"] == len(Manifest.from_bytes(sealed["manifest"].encode()).regions)
        filler.kill()
        left = gpu_memory()
        given, again = holder.ask("give")
        assert not given["cuda"]
        with process("attach") as late:
            assert "verify" in late.ask("set", again, **sealed)[0]
            fdpass.close_all(again)
            late.ask("close")
            late.end()
        assert holder.end() == 0
        nbytes = Manifest.from_bytes(sealed["manifest"].encode()).nbytes
        assert until(lambda: gpu_memory() <= left - nbytes // MIB), "the memory stays, though nobody holds it"


def until(true: Callable[[], bool], seconds: float = 20) -> bool:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def test_descriptors_tell_their_regions_apart(small: CudaMemory) -> None:
    fds = [small.create(small.granularity) for _ in range(2)]
    with process("hold") as holder:
        holder.ask("keep", fds)
        came = holder.ask("give")[1]
    assert sameregion.all_same(fds, came)
    assert not sameregion.all_same(fds, came[::-1])
    fdpass.close_all([*fds, *came])


class TestWhatTheDriverRefuses:
    def test_more_than_the_gpu_has(self, small: CudaMemory) -> None:
        with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            small.create(1 << 40)

    @pytest.mark.parametrize(
        "make", [lambda: os.memfd_create("x"), lambda: os.open("/dev/null", 0)], ids=["memfd", "null"]
    )
    def test_a_descriptor_of_something_else(self, small: CudaMemory, make: Callable[[], int]) -> None:
        fd = make()
        with pytest.raises(DeviceError, match="cannot import a region"):
            small.map([fd], [small.granularity], writable=False)
        os.close(fd)

    @pytest.mark.parametrize("sizes", [[1, 2], [2, 2], [1, 1]], ids=["swapped", "too large", "too small"])
    def test_another_size_than_the_regions(self, small: CudaMemory, sizes: list[int]) -> None:
        fds = [small.create(times * small.granularity) for times in (2, 1)]
        with pytest.raises(DeviceError, match="cannot map region"):
            small.map(fds, [times * small.granularity for times in sizes], writable=False)
        fdpass.close_all(fds)

    def test_an_export_by_who_imported(self, small: CudaMemory) -> None:
        fd = small.create(small.granularity)
        device = small._device
        kind = device.api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with process("hold") as holder:
            holder.ask("keep", [fd])
            came = holder.ask("give")[1]
        with device.current():
            handle = device.call("import", "cuMemImportFromShareableHandle", came[0], kind)
            with pytest.raises(DeviceError, match="CUDA_ERROR"):
                device.call("export", "cuMemExportToShareableHandle", handle, kind, 0)
            device.call("release", "cuMemRelease", handle)
        fdpass.close_all([fd, *came])


def test_nothing_stays_open_or_allocated(small: CudaMemory, gpu_memory: Callable[[], int]) -> None:
    import torch

    made_once(small)  # the driver's own pools are there from now on
    free, used = torch.cuda.mem_get_info()[0], gpu_memory()
    with none_leaked():
        for _ in range(3):
            made_once(small)
    assert torch.cuda.mem_get_info()[0] == free
    assert gpu_memory() == used


def made_once(memory: CudaMemory) -> None:
    one = made(memory, [TensorSpec("w", "bfloat16", (100 * MIB,), (1,))])
    seal(one)
    again = memory.map(one.fds, [region.size for region in one.manifest.regions], writable=False)
    checks.verify(again, one.manifest)
    again.close()
    one.mapping.close()
    fdpass.close_all(one.fds)


class TestSeveralGpus:
    @pytest.fixture
    def second(self) -> Iterator[Set]:
        import torch

        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        one = made(SmallRegions(1), [TensorSpec("w", "bfloat16", (20 * MIB,), (1,))])
        one.tensor("w").normal_()
        seal(one)
        yield one
        one.mapping.close()
        fdpass.close_all(one.fds)

    def test_tensors_lie_on_the_rank_s_own(self, second: Set) -> None:
        assert str(second.tensor("w").device) == "cuda:1"
        assert SmallRegions(SmallRegions(1).uuid).device == "cuda:1"

    def test_memory_of_another_is_refused(self, second: Set) -> None:
        sizes = [region.size for region in second.manifest.regions]
        with pytest.raises(DeviceError, match="is memory of cuda:1, not of cuda:0"):
            SmallRegions(0).map(second.fds, sizes, writable=False)

    def test_a_process_that_sees_only_that_one_attaches(self, second: Set) -> None:
        with process("attach", visible=SmallRegions(1).uuid) as other:
            done, _ = other.ask("set", second.fds, manifest=second.manifest.to_bytes().decode())
        assert done["first"] == second.mapping.buffer(0, 8).hex()

    def test_a_process_that_does_not_see_it_is_refused(self, second: Set) -> None:
        with (
            process("attach", visible=SmallRegions(0).uuid) as other,
            pytest.raises(AssertionError, match="a GPU that this process does not see, not of cuda:0"),
        ):
            other.ask("set", second.fds, manifest=second.manifest.to_bytes().decode())


class TestSixtyGibibytes:
    @pytest.fixture(scope="class")
    def big(self) -> Iterator[Set]:
        import torch

        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        if free < BIG + (2 << 30):
            pytest.skip(f"needs {BIG >> 30} GiB of free GPU memory and 2 more; {free >> 30} GiB are free")
        memory = CudaMemory()
        layout = layout_of([f"layer.{number}" for number in range(60)], 1 << 30, memory)
        fds = [memory.create(size) for size in layout.sizes]
        assert len(fds) == 15
        mapping = memory.map(fds, layout.sizes, writable=True)
        for entry in layout.tensors:
            tensor_at(mapping, entry).view(torch.int64).random_()
        manifest = Manifest(
            identity=identity(),
            rank=0,
            kind="cuda",
            tensors=layout.tensors,
            regions=checks.checksum_regions(mapping, layout.sizes),
        )
        yield Set(mapping, fds, manifest)
        mapping.close()
        fdpass.close_all(fds)
        assert torch.cuda.mem_get_info()[0] >= free - KERNELS

    def test_are_attached_within_ten_milliseconds(self, big: Set, table: list[str]) -> None:
        with process("attach") as other:
            done, _ = other.ask("set", big.fds, manifest=big.manifest.to_bytes().decode())
            again, _ = other.ask("again")
            closed, _ = other.ask("close")
        runs = []
        for _ in range(5):
            mapping, ms = attach(CudaMemory(), big.manifest, big.fds)
            mapping.close()
            runs.append(ms)
        for name in ("import", "reserve", "map", "access", "all"):
            middle = statistics.median(run[name] for run in runs)
            table.append(f"attach 60 GiB, {name}: {done['ms'][name]:.2f} ms first in a process, then {middle:.2f} ms")
        full = f"{done['verify']:.1f} ms with the kernel's first load, then {again['verify']:.1f} ms"
        table.append(f"full check of 60 GiB against the manifest: {full}; unmap {closed['ms']:.1f} ms")
        assert done["ms"]["all"] <= 10
        assert statistics.median(run["all"] for run in runs) <= 10

    def test_every_flipped_bit_is_found_in_one_pass(self, big: Set, table: list[str]) -> None:
        import torch

        chosen = torch.Generator().manual_seed(os.getpid())
        times = []
        for bit in range(64):
            number = int(torch.randint(60, (), generator=chosen))
            words = big.tensor(f"layer.{number}").view(torch.int64)
            at = int(torch.randint(len(words), (), generator=chosen))
            mask = 1 << bit if bit < 63 else -(1 << 63)
            words[at] ^= mask
            torch.cuda.synchronize()
            place = big.manifest.tensors[number].offset + 8 * at
            region, chunk = place // (4 << 30), place % (4 << 30) // CHUNK
            began = time.perf_counter()
            found = sums_of(big)
            times.append((time.perf_counter() - began) * 1000)
            wrong = [
                (r, c)
                for r, (now, then) in enumerate(zip(found, big.manifest.regions, strict=True))
                for c, (one, two) in enumerate(zip(now, then.checksums, strict=True))
                if one != two
            ]
            assert wrong == [(region, chunk)], f"bit {bit} of word {at} of layer {number}"
            words[at] ^= mask
        table.append(f"checksum of 60 GiB on the device: {statistics.median(times):.1f} ms, most {max(times):.1f} ms")
        table.append(f"single flipped bits found: {len(times)} of 64, each in its chunk alone")
        assert statistics.median(times) < 50

    def test_a_flipped_bit_ends_an_attach_with_the_tensors_name(self, big: Set) -> None:
        import torch

        words = big.tensor("layer.33").view(torch.int64)
        words[12345] ^= 1
        try:
            with pytest.raises(AttachCheckFailed, match=r"region 8, chunk 256 of the target .* it holds layer\.33$"):
                checks.verify(big.mapping, big.manifest, checks.before_serving(big.manifest, sample=1))
        finally:
            words[12345] ^= 1
        checks.verify(big.mapping, big.manifest)

    def test_swapped_words_are_found(self, big: Set) -> None:
        import torch

        words = big.tensor("layer.0").view(torch.int64)
        words[:2] = words[:2].flip(0)
        try:
            with pytest.raises(AttachCheckFailed, match="region 0, chunk 0"):
                checks.verify(big.mapping, big.manifest)
        finally:
            words[:2] = words[:2].flip(0)
        checks.verify(big.mapping, big.manifest)


def sums_of(one: Set) -> list[list[int]]:
    """The checksum pass alone, region by region."""
    starts = [0]
    for region in one.manifest.regions:
        starts.append(starts[-1] + region.size)
    found = [one.mapping.sums(start, region.size) for start, region in zip(starts, one.manifest.regions, strict=False)]
    assert sum(map(len, found)) == math.ceil(one.mapping.size / CHUNK)
    return found
