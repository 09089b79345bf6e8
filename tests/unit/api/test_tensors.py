"""Tensors over a mapping: the same bytes, every dtype, aliases, and modules bound without a copy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.fake_memory import FakeDevice, FakeRank
from torch import nn

from ling_api import fdpass, tensors
from ling_api.errors import AttachCheckFailed, BadInput, DeviceError
from ling_api.manifest import ITEM_BYTES, Layout, TensorEntry, TensorSpec, plan_layout
from ling_api.memory.memfd import MemfdMapping, MemfdMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SmallMemfd(MemfdMemory):
    granularity = 4096
    max_region = 16 << 10


@dataclasses.dataclass
class Place:
    """A mapping for a layout, and its descriptors."""

    mapping: MemfdMapping
    fds: list[int]


@pytest.fixture
def place() -> Iterator[Callable[[Layout], Place]]:
    made: list[Place] = []

    def make(layout: Layout) -> Place:
        memory = SmallMemfd()
        fds = [memory.create(size) for size in layout.sizes]
        made.append(Place(memory.map(fds, layout.sizes, writable=True), fds))
        return made[-1]

    yield make
    for each in made:
        fdpass.close_all(each.fds)  # the mappings stay: tensors of the test may still be alive


def plan(specs: list[TensorSpec]) -> Layout:
    return plan_layout(specs, granularity=SmallMemfd.granularity, max_region=SmallMemfd.max_region)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(50, 64, dtype=torch.bfloat16))


class Model(nn.Module):
    """Tied embeddings, a transposed weight, a view, a scalar, nothing at all, float8, and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = Part(), Part()
        self.head.weight = self.embedding.weight
        self.turned = nn.Parameter(torch.empty(8, 600).t())
        self.first_rows = nn.Parameter(self.turned.data[:2])
        self.scale = nn.Parameter(torch.empty(()))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.eight = nn.Parameter(torch.empty(4, 4, dtype=torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("steps", torch.zeros(3, device="cpu"))


def meta_model(kind: type[nn.Module] = Model) -> nn.Module:
    with torch.device("meta"):
        return kind()


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_every_dtype_has_a_tensor_over_the_very_bytes(place: Callable[[Layout], Place], dtype: str) -> None:
    layout = plan([TensorSpec("pad", "int8", (9,), (1,)), TensorSpec("x", dtype, (3, 4), (4, 1))])
    mapping = place(layout).mapping
    entry = layout.tensors[1]
    tensor = tensors.tensor_at(mapping, entry)
    assert (str(tensor.dtype), tuple(tensor.shape), tensor.stride()) == (f"torch.{dtype}", (3, 4), (4, 1))
    assert tensor.data_ptr() == mapping.address + entry.offset
    assert tensor.element_size() == ITEM_BYTES[dtype]
    mapping.buffer(entry.offset, entry.nbytes)[:] = bytes([1]) * entry.nbytes
    assert bytes(tensor.view(torch.uint8).flatten().tolist()) == bytes([1]) * entry.nbytes


def test_strides_are_those_of_the_entry(place: Callable[[Layout], Place]) -> None:
    layout = plan([TensorSpec("x", "int32", (2, 3), (1, 2))])
    mapping = place(layout).mapping
    flat = tensors.tensor_at(mapping, dataclasses.replace(layout.tensors[0], shape=(6,), stride=(1,)))
    flat.copy_(torch.arange(6))
    assert tensors.tensor_at(mapping, layout.tensors[0]).tolist() == [[0, 2, 4], [1, 3, 5]]


def test_a_tensor_spans_regions(place: Callable[[Layout], Place]) -> None:
    layout = plan([TensorSpec("x", "float32", (10_000,), (1,))])
    assert len(layout.sizes) == 3
    mapping = place(layout).mapping
    tensors.tensor_at(mapping, layout.tensors[0]).copy_(torch.arange(10_000))
    assert tensors.tensor_at(mapping, layout.tensors[0]).sum().item() == pytest.approx(sum(range(10_000)))


@pytest.mark.parametrize(
    ("entry", "error", "sentence"),
    [
        (TensorEntry("x", "int8", (4097,), (1,), 0, 4097), BadInput, "behind the set's 4096"),
        (TensorEntry("x", "int8", (1,), (1,), -512, 1), BadInput, "'x'"),
        (TensorEntry("x", "save", (1,), (1,), 0, 1), BadInput, "dtype 'save'"),
    ],
    ids=["behind the end", "before the start", "no dtype"],
)
def test_an_entry_without_a_place_is_refused(
    place: Callable[[Layout], Place], entry: TensorEntry, error: type[Exception], sentence: str
) -> None:
    mapping = place(plan([TensorSpec("x", "int8", (1,), (1,))])).mapping
    with pytest.raises(error, match=sentence):
        tensors.tensor_at(mapping, entry)


def test_memory_that_the_host_cannot_address_is_refused() -> None:
    rank = FakeRank(FakeDevice(), filling=True)
    fd = rank.create(4096)
    mapping = rank.map([fd], [4096], writable=True)
    with pytest.raises(DeviceError, match="cuda:0"):
        tensors.tensor_at(mapping, TensorEntry("x", "int8", (1,), (1,), 0, 1))
    fdpass.close_all([fd])


class TestSpecs:
    @pytest.mark.parametrize("make", [meta_model, Model], ids=["meta", "cpu"])
    def test_name_every_parameter_and_its_aliases(self, make: Callable[[], nn.Module]) -> None:
        specs = {spec.name: spec for spec in tensors.specs_of(make())}
        assert set(specs) == {
            *("embedding.weight", "head.weight", "turned", "first_rows", "scale", "nothing", "eight"),
        }
        assert specs["turned"] == TensorSpec("turned", "float32", (600, 8), (1, 600))
        assert specs["first_rows"] == TensorSpec("first_rows", "float32", (2, 8), (1, 600), "turned")
        assert specs["head.weight"].alias_of == "embedding.weight"
        assert specs["eight"].dtype == "float8_e4m3fn"
        assert [name for name, spec in specs.items() if spec.alias_of] == ["first_rows", "head.weight"]

    def test_the_longest_owns_the_storage_whatever_its_name(self) -> None:
        module = nn.Module()
        whole = torch.empty(10)
        module.short, module.whole = nn.Parameter(whole[:3]), nn.Parameter(whole)
        assert [spec.alias_of for spec in tensors.specs_of(module)] == ["whole", None]

    def test_parts_of_one_storage_that_do_not_overlap_are_tensors_of_their_own(self) -> None:
        module = nn.Module()
        whole = torch.empty(10)
        module.a, module.b = nn.Parameter(whole[:5]), nn.Parameter(whole[5:])
        assert [spec.alias_of for spec in tensors.specs_of(module)] == [None, None]

    def test_a_partial_overlap_is_refused(self) -> None:
        module = nn.Module()
        whole = torch.empty(10)
        module.a, module.b = nn.Parameter(whole[:6]), nn.Parameter(whole[5:])
        with pytest.raises(BadInput, match="'a' and 'b' overlap"):
            tensors.specs_of(module)


class TestBind:
    @pytest.mark.parametrize("make", [meta_model, Model], ids=["meta", "cpu"])
    def test_points_every_parameter_into_the_mapping(
        self, place: Callable[[Layout], Place], make: Callable[[], nn.Module]
    ) -> None:
        model = make()
        model.embedding.weight.weight_loader = "the runtime's own"
        before = dict(model.named_parameters(remove_duplicate=False))
        specs = tensors.specs_of(model)
        layout = plan(specs)
        mapping = place(layout).mapping
        tensors.bind(model, mapping, layout)
        entries = {entry.name: entry for entry in layout.tensors}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            assert parameter is before[name]
            assert isinstance(parameter, nn.Parameter)
            assert not parameter.requires_grad
            assert parameter.device.type == "cpu"
            if entries[name].nbytes:
                assert parameter.data_ptr() == mapping.address + entries[name].offset
        assert tensors.specs_of(model) == specs
        assert model.embedding.weight.weight_loader == "the runtime's own"
        assert model.steps.tolist() == [0, 0, 0]

    def test_an_attacher_reads_what_the_filler_wrote(self, place: Callable[[Layout], Place]) -> None:
        filler, attacher = meta_model(), meta_model()
        layout = plan(tensors.specs_of(filler))
        filled = place(layout)
        tensors.bind(filler, filled.mapping, layout)
        with torch.no_grad():
            filler.turned.copy_(torch.randn(600, 8))
            filler.embedding.weight.copy_(torch.randn(50, 64))
        filled.mapping.make_read_only(filled.fds)
        mapping = SmallMemfd().map(filled.fds, layout.sizes, writable=False)
        tensors.bind(attacher, mapping, layout)
        assert torch.equal(attacher.turned, filler.turned)
        assert torch.equal(attacher.first_rows, filler.turned[:2])
        assert torch.equal(attacher.head.weight, filler.embedding.weight)
        assert attacher.turned.data_ptr() != filler.turned.data_ptr()

    def test_parameters_of_a_class_of_the_runtime_keep_it(self, place: Callable[[Layout], Place]) -> None:
        class Loaded(nn.Parameter):
            pass

        module = nn.Module()
        module.weight = Loaded(torch.empty(4, device="meta"))
        layout = plan(tensors.specs_of(module))
        tensors.bind(module, place(layout).mapping, layout)
        assert type(module.weight) is Loaded

    @pytest.mark.parametrize(
        ("name", "change", "sentence"),
        [
            ("turned", {"shape": (8, 600)}, r"'turned' has the shape \(600, 8\); the weight set has \(8, 600\)"),
            ("turned", {"stride": (8, 1)}, r"'turned' has the stride \(1, 600\); the weight set has \(8, 1\)"),
            ("scale", {"dtype": "int32"}, "'scale' has the dtype float32; the weight set has int32"),
            ("scale", {"name": "other"}, "'scale' is not in the weight set"),
            ("scale", {"offset": 0}, "'turned' and 'scale' are one tensor in the weight set"),
            ("first_rows", {"offset": 19456}, "'first_rows' is an alias of 'turned'; not so in the weight set"),
        ],
        ids=["shape", "strides", "dtype", "missing", "an alias too many", "an alias too few"],
    )
    def test_a_set_of_another_model_is_refused(
        self, place: Callable[[Layout], Place], name: str, change: dict[str, object], sentence: str
    ) -> None:
        model = meta_model()
        layout = plan(tensors.specs_of(model))
        changed = tuple(
            dataclasses.replace(entry, **change) if entry.name == name else entry for entry in layout.tensors
        )
        with pytest.raises(AttachCheckFailed, match=sentence):
            tensors.bind(model, place(layout).mapping, Layout(changed, layout.sizes))
        assert all(parameter.is_meta for parameter in model.parameters())

    def test_an_entry_that_no_parameter_uses_is_refused(self, place: Callable[[Layout], Place]) -> None:
        layout = plan([*tensors.specs_of(meta_model()), TensorSpec("more", "int8", (1,), (1,))])
        with pytest.raises(AttachCheckFailed, match="'more' is no parameter of this model"):
            tensors.bind(meta_model(), place(layout).mapping, layout)

    def test_a_buffer_without_storage_is_refused(self, place: Callable[[Layout], Place]) -> None:
        model = meta_model(Part)
        model.register_buffer("cache", torch.empty(3, device="meta"))
        layout = plan(tensors.specs_of(model))
        with pytest.raises(AttachCheckFailed, match="buffer 'cache' has no storage"):
            tensors.bind(model, place(layout).mapping, layout)
