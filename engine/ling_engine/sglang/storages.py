"""Tensors by the storage that they share, and views over a set's memory that stand where others stood."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from ling_api.manifest import TensorEntry, TensorSpec

from .reach import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .reach import Found, Place


@dataclass(slots=True)
class Group:
    """The places whose tensors share a storage, and the bytes of it that they use."""

    places: list[Place] = field(default_factory=list)
    start: int = 0
    end: int = 0

    @property
    def meta(self) -> bool:
        return self.places[0].tensor.is_meta

    @property
    def parameters(self) -> list[Place]:
        return [place for place in self.places if place.how == "parameter"]

    @property
    def address(self) -> int:
        """Of the first byte that is used."""
        return int(self.places[0].tensor.untyped_storage().data_ptr()) + self.start

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def name(self) -> str:
        """Of its largest tensor, a parameter if there is one."""
        return self._owner.path

    @property
    def _owner(self) -> Place:
        return max(self.parameters or self.places, key=lambda place: extent(place.tensor))

    def spec(self) -> TensorSpec:
        """The largest tensor's form when it covers all others, else the bytes that are used."""
        owner = self._owner.tensor
        dtype = str(owner.dtype).removeprefix("torch.")
        if (begin(owner), extent(owner)) == (self.start, self.nbytes):
            return TensorSpec(self.name, dtype, tuple(owner.shape), tuple(owner.stride()))
        return TensorSpec(self.name, "uint8", (self.nbytes,), (1,))

    def bytes(self) -> torch.Tensor:
        """The used bytes, flat."""
        tensor = self.places[0].tensor
        return view(tensor.untyped_storage(), tensor.device, torch.uint8, self.start, (self.nbytes,), (1,))


def grouped(places: Iterable[Place]) -> list[Group]:
    """In the order of the first place of each."""
    groups: dict[int, Group] = {}
    for place in places:
        group = groups.setdefault(storage_of(place.tensor), Group())
        first, last = begin(place.tensor), begin(place.tensor) + extent(place.tensor)
        group.start = min(group.start, first) if group.places else first
        group.end = max(group.end, last)
        group.places.append(place)
    return list(groups.values())


def begin(tensor: torch.Tensor) -> int:
    """The tensor's first byte in its storage."""
    return int(tensor.storage_offset()) * tensor.element_size()


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def view(
    storage: torch.UntypedStorage,
    device: torch.device,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """A tensor over a storage; `offset` in bytes, a multiple of the dtype's size."""
    empty = torch.empty(0, dtype=dtype, device=device)
    return empty.set_(storage, offset // empty.element_size(), shape, stride)


def flat(entry: TensorEntry) -> TensorEntry:
    """The same bytes as one row of them."""
    return TensorEntry(entry.name, "uint8", (entry.nbytes,), (1,), entry.offset, entry.nbytes)


def rehang(found: Found, group: Group, home: torch.Tensor) -> None:
    """Points every tensor of the group into `home`, a flat tensor for its used bytes.

    Places that hang one object go on to hang one object. A parameter without storage is replaced by a new object of its
    class with its attributes, because torch gives no storage to one that has none.
    """
    storage, base = home.untyped_storage(), int(home.storage_offset())
    made: dict[int, torch.Tensor] = {}
    for place in group.places:
        old = place.tensor
        if id(old) not in made:
            offset = base + begin(old) - group.start
            new = view(storage, home.device, old.dtype, offset, tuple(old.shape), tuple(old.stride()))
            made[id(old)] = pointed(old, new) if isinstance(old, nn.Parameter) else new
        found.put(place.owner, place.key, place.how, made[id(old)])


def pointed(parameter: nn.Parameter, to: torch.Tensor) -> nn.Parameter:
    """The parameter with the memory of `to`: the same object, or a new one like it."""
    if not parameter.is_meta and parameter.device == to.device:
        parameter.data = to
        return parameter
    made: nn.Parameter = torch.Tensor._make_subclass(type(parameter), to, parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made
