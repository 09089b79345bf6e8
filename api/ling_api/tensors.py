"""Torch tensors over a mapping, without a copy. Torch is imported inside the functions: most of us live without it.

A tensor does not keep its mapping alive: close the mapping after the last tensor is gone, or never.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import TYPE_CHECKING

from ling_api.errors import AttachCheckFailed, BadInput, DeviceError
from ling_api.manifest import ITEM_BYTES, TensorEntry, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ling_api.manifest import Layout, Manifest
    from ling_api.memory.base import Mapping


def tensor_at(mapping: Mapping, entry: TensorEntry) -> torch.Tensor:
    """The tensor of shape `entry.shape` that lies in the mapping. Raises DeviceError, BadInput (outside of it)."""
    return _over(_storage(mapping, entry), entry)


def specs_of(module: torch.nn.Module) -> list[TensorSpec]:
    """Every parameter's name, dtype, shape and strides, in the module's order; works on `meta` too.

    Names that share a storage are aliases of the longest of them. Raises BadInput for parameters that overlap in one
    storage without starting at the same element.
    """
    parameters = list(module.named_parameters(remove_duplicate=False))
    places: dict[tuple[int, int], list[TensorSpec]] = {}
    for name, parameter in parameters:
        places.setdefault(_place(parameter), []).append(_spec(name, parameter))
    _refuse_partial_overlap(places)
    owners = {place: max(specs, key=lambda spec: spec.nbytes) for place, specs in places.items()}
    result = []
    for name, parameter in parameters:
        owner = owners[_place(parameter)]
        result.append(_spec(name, parameter, None if owner.name == name else owner.name))
    return result


def bind(module: torch.nn.Module, mapping: Mapping, layout: Layout | Manifest) -> None:
    """Points every parameter into the mapping; each stays the same object, no longer asking for gradients.

    Buffers stay as they are: private, and made before. Raises AttachCheckFailed when a parameter has no entry or
    another dtype, shape, strides or alias, when an entry is no parameter, and when anything is left on `meta`.
    """
    specs = specs_of(module)
    entries = {entry.name: entry for entry in layout.tensors}
    _check_same(specs, entries)
    storages: dict[int, torch.Tensor] = {}
    for entry in sorted(layout.tensors, key=lambda entry: -entry.nbytes):  # the longest alias brings the storage
        if entry.nbytes and entry.offset not in storages:
            storages[entry.offset] = _storage(mapping, entry)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        entry = entries[name]
        storage = storages[entry.offset] if entry.nbytes else _storage(mapping, entry)
        _point(parameter, _over(storage, entry))
    _check_no_meta(module)


def _storage(mapping: Mapping, entry: TensorEntry) -> torch.Tensor:
    """The entry's bytes as a flat uint8 tensor."""
    import torch

    if entry.offset < 0 or entry.offset + entry.nbytes > mapping.size:
        raise BadInput(f"tensor {entry.name!r} ends at {entry.offset + entry.nbytes}, behind the set's {mapping.size}")
    if mapping.device != "cpu":
        return _device_storage(mapping, entry)
    if entry.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    # Not mapping.buffer(): torch warns about a view that is not writable, and has no notion of one.
    memory = (ctypes.c_ubyte * entry.nbytes).from_address(mapping.address + entry.offset)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _device_storage(mapping: Mapping, entry: TensorEntry) -> torch.Tensor:
    import torch

    try:
        if entry.nbytes == 0:
            return torch.empty(0, dtype=torch.uint8, device=mapping.device)
        return torch.as_tensor(_DeviceBytes(mapping.address + entry.offset, entry.nbytes), device=mapping.device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA, or one that finds no driver
        raise DeviceError(f"tensor {entry.name!r}: torch cannot use memory of {mapping.device}: {error}") from error


class _DeviceBytes:
    """Device memory as torch takes it over without a copy; it finds the device by the address itself."""

    def __init__(self, address: int, nbytes: int) -> None:
        # Not marked as read-only: torch has no notion of it.
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 2}


def _over(storage: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """The entry's tensor over a storage that begins where it begins."""
    import torch

    if entry.dtype not in ITEM_BYTES:
        raise BadInput(f"tensor {entry.name!r} has the dtype {entry.dtype!r}, which has no tensor")
    typed = storage[: entry.nbytes].view(getattr(torch, entry.dtype))
    return torch.as_strided(typed, entry.shape, entry.stride)


def _point(parameter: torch.Tensor, tensor: torch.Tensor) -> None:
    """Gives the parameter the tensor's memory; object, class and attributes stay."""
    import torch

    parameter.requires_grad_(False)
    if not parameter.is_meta:
        parameter.data = tensor
        return
    # Torch takes no `.data` from another kind of device, so the insides of two objects are swapped.
    made = torch.Tensor._make_subclass(type(parameter), tensor, False)
    made.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]


def _place(parameter: torch.Tensor) -> tuple[int, int]:
    """What two tensors at the same place have in common: the storage (also on meta) and the first byte in it."""
    return parameter.untyped_storage()._cdata, int(parameter.storage_offset()) * parameter.element_size()


def _spec(name: str, parameter: torch.Tensor, alias_of: str | None = None) -> TensorSpec:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return TensorSpec(name, dtype, tuple(parameter.shape), tuple(parameter.stride()), alias_of)


def _refuse_partial_overlap(places: dict[tuple[int, int], list[TensorSpec]]) -> None:
    ends = {place: max(spec.nbytes for spec in specs) for place, specs in places.items()}
    for one, two in pairwise(sorted(place for place, nbytes in ends.items() if nbytes)):
        if one[0] == two[0] and one[1] + ends[one] > two[1]:
            names = f"{places[one][0].name!r} and {places[two][0].name!r}"
            raise BadInput(f"parameters {names} overlap in one storage and do not start together; make one a copy")


def _check_same(specs: Iterable[TensorSpec], entries: dict[str, TensorEntry]) -> None:
    unused = dict(entries)
    owner_at: dict[int, str] = {}
    for spec in specs:
        entry = unused.pop(spec.name, None)
        if entry is None:
            raise AttachCheckFailed(f"parameter {spec.name!r} is not in the weight set")
        for what in ("dtype", "shape", "stride"):
            wanted, held = getattr(spec, what), getattr(entry, what)
            if wanted != held:
                raise AttachCheckFailed(f"parameter {spec.name!r} has the {what} {wanted}; the weight set has {held}")
        if spec.nbytes:
            _check_alias(spec, entry, entries, owner_at)
    if unused:
        raise AttachCheckFailed(f"the weight set's tensor {min(unused)!r} is no parameter of this model")


def _check_alias(
    spec: TensorSpec, entry: TensorEntry, entries: dict[str, TensorEntry], owner_at: dict[int, str]
) -> None:
    """Aliases lie together, and nothing else does."""
    if spec.alias_of is not None:
        owner = entries.get(spec.alias_of)
        if owner is None or owner.offset != entry.offset:
            raise AttachCheckFailed(
                f"parameter {spec.name!r} is an alias of {spec.alias_of!r}; not so in the weight set"
            )
        return
    other = owner_at.setdefault(entry.offset, spec.name)
    if other != spec.name:
        raise AttachCheckFailed(f"parameters {other!r} and {spec.name!r} are one tensor in the weight set")


def _check_no_meta(module: torch.nn.Module) -> None:
    for what, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if tensor.is_meta:
                raise AttachCheckFailed(f"{what} {name!r} has no storage; make buffers before the weights are bound")
