"""A model's weights go into a set and come out of it in another process's model, whatever loading did to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.twins import fill
from torch import nn

from ling_api import checks
from ling_api.errors import AttachCheckFailed, FillFailed
from ling_engine.sglang import reach
from ling_engine.sglang.bare import Bare
from ling_engine.sglang.form import Form
from ling_engine.sglang.twin import ModelTwin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.twins import FilledSet

    from ling_api.memory.memfd import MemfdMapping

ROPE: dict[str, nn.Module] = {}  # as runtimes keep it: one for the process, shared by models


class Rope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8.0), persistent=False)


@dataclass
class RouterConfig:
    bias: torch.Tensor
    scale: float = 1.0


class Quant:
    """Not a module; holds plain values that post-processing changes."""

    def __init__(self) -> None:
        self.interleaved = False
        self.block: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Held:
    tensors: list[torch.Tensor] = field(default_factory=list)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 6), requires_grad=False)
        self.weight.weight_loader = print  # type: ignore[attr-defined]
        self.conv = nn.Parameter(torch.empty(6, 1, 4), requires_grad=False)
        self.conv_view = self.conv.squeeze(1)  # a plain attribute that is a view
        self.norm = nn.Parameter(torch.ones(5))  # asks for gradients, as loaded models do
        self.twice = self.norm  # one object, registered twice
        self.scale = nn.Parameter(torch.tensor(-1.0), requires_grad=False)  # in no checkpoint: its value counts
        self.bias = nn.Parameter(torch.empty(3), requires_grad=False)
        self.router = RouterConfig(self.bias.data)
        self.held = Held([self.bias.data])
        self.quant = Quant()
        self.register_buffer("steps", torch.zeros(2))
        self.derived: torch.Tensor | None = None
        self.rope = ROPE.setdefault("rope", Rope())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.vocab = nn.Embedding(7, 2)


def build(kind: type[nn.Module] = Model) -> tuple[nn.Module, Bare]:
    bare = Bare(least=1)
    with torch.device("cpu"), bare:
        return kind(), bare


def load(model: nn.Module) -> None:
    """What a runtime's loader does: writes in place, computes, changes a plain value."""
    torch.manual_seed(7)
    for layer in model.layers:  # type: ignore[union-attr]
        for name in ("weight", "conv", "norm", "bias"):
            getattr(layer, name).data.copy_(torch.randn(getattr(layer, name).shape))
        layer.steps.fill_(3)
        layer.derived = layer.weight.data.t() * 2


LENT = ("vocab.weight",)


def twin_of(
    loads: Callable[[nn.Module], None] = load, kind: type[nn.Module] = Model, absent: tuple[str, ...] = LENT
) -> ModelTwin:
    model, bare = build(kind)

    def run(progress: Callable[[float], None]) -> str:
        loads(model)
        return ""

    descend = lambda one: isinstance(one, Quant)  # noqa: E731
    return ModelTwin(model, role="target", rank=0, descend=descend, absent=frozenset(absent), bare=bare, loads=run)


class Room:
    """Fills and attaches; closes all of it."""

    def __init__(self) -> None:
        self.sets: list[FilledSet] = []
        self.mappings: list[MemfdMapping] = []

    def fill(self, twin: ModelTwin) -> FilledSet:
        self.sets.append(fill(twin))
        return self.sets[-1]

    def attach(self, filled: FilledSet, twin: ModelTwin) -> nn.Module:
        mapping = filled.map()
        self.mappings.append(mapping)
        twin.attach(mapping, filled.manifest)
        checks.verify(mapping, filled.manifest)
        return twin.model


@pytest.fixture
def room() -> Iterator[Room]:
    ROPE.clear()
    room = Room()
    yield room
    for filled in room.sets:
        filled.close()


def described(model: nn.Module) -> dict[str, Any]:
    found = reach.walk(model, lambda one: isinstance(one, Quant))
    return {
        place.path: (
            place.how, place.tensor.dtype, tuple(place.tensor.shape), place.tensor.stride(),
            place.tensor.requires_grad, type(place.tensor), sorted(vars(place.tensor)),
            None if place.tensor.is_meta else place.tensor.tolist(),
        )
        for place in found.places
    }  # fmt: skip


def loaded() -> nn.Module:
    """The same model as a stock loader leaves it."""
    with torch.device("cpu"):
        model = Model()
    model.vocab.weight = nn.Parameter(torch.empty(7, 2, device="meta"))
    load(model)
    return model


def test_filled_and_attached_models_are_what_the_loader_left(room: Room) -> None:
    filler = twin_of()
    filled = room.fill(filler)
    attached = room.attach(filled, twin_of())
    assert described(filler.model) == described(loaded())
    assert described(attached) == described(loaded())


def test_views_and_shared_objects_stay_what_they_are(room: Room) -> None:
    for model in ((filler := twin_of()).model, room.attach(room.fill(filler), twin_of())):
        for layer in model.layers:
            assert layer.conv_view.data_ptr() == layer.conv.data_ptr()
            assert layer.router.bias.data_ptr() == layer.bias.data_ptr() == layer.held.tensors[0].data_ptr()
            assert layer.twice is layer.norm
        addresses = {layer.bias.data_ptr() for layer in model.layers}
        assert len(addresses) == 2, "each tensor has a storage of its own: views find their own bytes"


def test_parameters_are_in_the_set_and_all_else_is_private(room: Room) -> None:
    filled = room.fill(twin_of())
    model = room.attach(filled, twin_of())
    mapping = room.mappings[-1]
    within = lambda t: mapping.address <= t.data_ptr() < mapping.address + mapping.size  # noqa: E731
    for layer in model.layers:
        assert within(layer.weight)
        assert not within(layer.steps)
        assert not within(layer.derived)
        layer.steps.add_(1)  # writable
        layer.derived.add_(1)


def test_a_live_table_is_kept_although_it_has_grown_since(room: Room) -> None:
    filled = room.fill(twin_of())
    ROPE["rope"].table = torch.arange(16.0)
    model = room.attach(filled, twin_of())
    assert model.layers[0].rope is ROPE["rope"]
    assert ROPE["rope"].table.tolist() == torch.arange(16.0).tolist()


def test_what_another_model_lends_later_stays_without_storage(room: Room) -> None:
    model = room.attach(room.fill(twin_of()), twin_of())
    assert model.vocab.weight.is_meta


def replace_storages(model: nn.Module) -> None:
    load(model)
    first, second = model.layers  # type: ignore[misc]
    first.weight.data = first.weight.data.t().contiguous()  # another storage of the same size
    first.conv.data = torch.cat([first.conv.data, first.conv.data])  # a larger one
    first.conv_view = first.conv.squeeze(1)
    second.weight = nn.Parameter(second.weight.data.to(torch.bfloat16), requires_grad=False)  # a smaller one
    second.weight.padded = 16
    del second.conv, second.conv_view  # used up by post-processing
    second.packed = nn.Parameter(torch.full((9,), 2.5), requires_grad=False)  # new
    second.scale = None  # no longer used
    first.bias.format_ue8m0 = True  # kernels ask the parameter itself
    second.bias.data = second.bias.data.reshape(3, 1)  # another form of the same storage
    first.quant.interleaved = True
    second.quant.block = (128, 128)
    second.kind = torch.bfloat16
    second.router.scale = 0.5


def test_what_post_processing_replaced_is_moved_into_the_set(room: Room) -> None:
    filler = twin_of(replace_storages)
    filled = room.fill(filler)
    attached = room.attach(filled, twin_of())
    expected = loaded()
    replace_storages(expected)
    assert described(attached) == described(filler.model) == described(expected)
    for model in (filler.model, attached):
        within = filled.mapping if model is filler.model else room.mappings[-1]
        for parameter in model.layers.parameters():
            assert within.address <= parameter.data_ptr() < within.address + within.size
        first, second = model.layers
        assert (first.quant.interleaved, second.quant.block) == (True, (128, 128))
        assert (second.kind, second.router.scale) == (torch.bfloat16, 0.5)
        assert first.conv_view.data_ptr() == first.conv.data_ptr()
        assert (second.scale, first.bias.format_ue8m0) == (None, True)


def put_object(model: nn.Module) -> None:
    load(model)
    model.layers[0].runner = Quant()  # type: ignore[index,union-attr]


class Unfilled(Model):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.empty(4)
        self.table.copy_(torch.arange(4.0))


@pytest.mark.parametrize(
    ("loads", "kind", "absent", "sentence"),
    [
        pytest.param(put_object, Model, LENT, "put a Quant at layers.0.runner", id="an object"),
        pytest.param(load, Unfilled, LENT, "table was written before", id="a value that was lost"),
        pytest.param(
            lambda model: setattr(model.layers[0], "extra", nn.Parameter(torch.empty(3, device="meta"))),
            Model, LENT, "layers.0.extra has no storage after loading", id="left on meta",
        ),
    ],
)  # fmt: skip
def test_a_fill_that_no_form_can_tell_fails(
    room: Room, loads: Callable[[nn.Module], None], kind: type[nn.Module], absent: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(FillFailed, match=sentence):
        room.fill(twin_of(loads, kind, absent))


class Wider(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0].bias = nn.Parameter(torch.empty(4), requires_grad=False)


class Deeper(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers.append(Layer())


class Interleaved(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0].quant.interleaved = None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "absent", "sentence"),
    [
        pytest.param(Wider, LENT, r"layers.0.bias is built as \('float32', \(4,\)\)", id="another shape"),
        pytest.param(Deeper, LENT, "tensor layers.2.weight that the set does not know", id="one too many"),
        pytest.param(Model, (), "leaves vocab.weight out; this model needs it", id="one is missing"),
        pytest.param(Interleaved, LENT, "changed layers.0.quant.interleaved from False", id="a value"),
    ],
)
def test_a_model_that_is_built_otherwise_is_refused(
    room: Room, kind: type[nn.Module], absent: tuple[str, ...], sentence: str
) -> None:
    filled = room.fill(twin_of(replace_storages))
    with pytest.raises(AttachCheckFailed, match=sentence):
        room.attach(filled, twin_of(kind=kind, absent=absent))


@pytest.mark.parametrize("text", ["", "{}", '{"version":2}', '{"version":1,"members":[[1]],"changes":[],"gone":[]}'])
def test_a_form_that_makes_no_sense_is_refused(room: Room, text: str) -> None:
    filled = room.fill(twin_of())
    with pytest.raises(AttachCheckFailed, match="form"):
        room.attach(filled.with_form(text), twin_of())


def test_a_form_survives_its_spelling(room: Room) -> None:
    text = room.fill(twin_of(replace_storages)).manifest.form
    assert Form.from_text(text).to_text() == text
    assert json.loads(text)["version"] == 1
