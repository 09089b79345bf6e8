"""Every tensor and plain value that a model can reach: parameters, buffers, attributes, inside dataclasses and lists.

Two processes that build the same model walk it in the same order and find the same paths; so a path written by the one
that filled a weight set names a place in the one that attaches it. Modules are walked by their names, other objects
through what they hold, as far as `descend` says. Pure torch: knows no runtime.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from . import plain
from .form import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .form import How

type Descend = Callable[[object], bool]

_DEEPEST: Final = 8  # objects below a module; a model's own are two or three deep
_CODE: Final = (type, FunctionType, MethodType, BuiltinFunctionType, functools.partial)  # no state of the model
_known_slots: dict[type, tuple[str, ...]] = {}
_MODULE_PARTS: Final = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor hangs: `path` is the holder's path (`owner`) and the key in it."""

    path: str
    owner: str
    key: str | int
    how: How
    tensor: torch.Tensor


@dataclass(slots=True)
class Found:
    """All that was reached. `values` are plain values by path, `opaque` the types of objects that are neither plain
    nor walked, `owners` the objects on which things hang."""

    places: list[Place] = field(default_factory=list)
    values: dict[str, plain.Value] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    where: dict[str, tuple[str, str | int, How]] = field(default_factory=dict)  # path of a value -> owner, key, how

    def put(self, owner: str, key: str | int, how: How, value: object) -> None:
        """Hangs a tensor or value where a place says. Raises KeyError when the owner is not there."""
        put(self.owners[owner], key, how, value)


def walk(model: nn.Module, descend: Descend) -> Found:
    """Everything reachable, each object once (by its first path), tensors at every place where they hang."""
    found = Found()
    _Walker(found, descend).model("", model)
    return found


def put(owner: object, key: str | int, how: How, value: Any) -> None:
    """Sets one place; a buffer keeps whether it is saved with the model."""
    if how == "item":
        owner[key] = value  # type: ignore[index]  # a list or dict; TypeError for a tuple
    elif isinstance(owner, nn.Module) and how in ("parameter", "buffer"):
        kept = owner._parameters if how == "parameter" else owner._buffers
        for other in (owner._parameters, owner._buffers, owner.__dict__):
            if other is not kept:
                other.pop(str(key), None)
        kept[str(key)] = value
    elif isinstance(owner, nn.Module):
        owner._parameters.pop(str(key), None)
        owner._buffers.pop(str(key), None)
        owner.__dict__[str(key)] = value
    else:
        object.__setattr__(owner, str(key), value)  # frozen dataclasses too


def remove(owner: object, key: str | int, how: How, *, leave_none: bool) -> None:
    """Takes a tensor away from one place."""
    if leave_none:
        put(owner, key, how, None)
    elif isinstance(owner, nn.Module) and how in ("parameter", "buffer"):
        (owner._parameters if how == "parameter" else owner._buffers).pop(str(key), None)
    elif how == "item":
        del owner[key]  # type: ignore[attr-defined]  # a list or dict
    else:
        object.__delattr__(owner, str(key))


def storage_of(tensor: torch.Tensor) -> int:
    """What views of one storage have in common, on `meta` too; while the storage lives."""
    return int(tensor.untyped_storage()._cdata)


class _Walker:
    def __init__(self, found: Found, descend: Descend) -> None:
        self._found = found
        self._descend = descend
        self._seen: set[int] = set()
        self._modules: set[nn.Module] = set()

    def model(self, path: str, model: nn.Module) -> None:
        """A module and those in it, each once: one that hangs elsewhere too is known by its first path."""
        for name, module in model.named_modules(memo=self._modules, prefix=path):
            self._module(name, module)

    def _module(self, path: str, module: nn.Module) -> None:
        self._found.owners[path] = module
        kinds: tuple[tuple[How, dict[str, torch.Tensor | None]], ...] = (
            ("parameter", module._parameters),  # type: ignore[assignment]  # torch says: a dict of Any
            ("buffer", module._buffers),
        )
        for how, tensors in kinds:
            for name, tensor in tensors.items():
                if tensor is not None:
                    self._found.places.append(Place(path_of(path, name, how), path, name, how, tensor))
        for name, value in list(module.__dict__.items()):
            if name not in _MODULE_PARTS and not name.endswith("_hooks"):
                self._value(path, name, "attribute", value, 0)

    def _value(self, owner: str, key: str | int, how: How, value: object, depth: int) -> None:
        path = path_of(owner, key, how)
        if isinstance(value, torch.Tensor):
            self._found.places.append(Place(path, owner, key, how, value))
        elif isinstance(value, nn.Module):
            self.model(path, value)
        elif isinstance(value, _CODE):
            return
        elif plain.is_plain(value):
            self._found.values[path] = plain.encode(value)
            self._found.where[path] = (owner, key, how)
        elif depth < _DEEPEST and self._walked(value):
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._found.owners[path] = value
                for inner, its_how, it in _parts(value):
                    self._value(path, inner, its_how, it, depth + 1)
        else:
            self._found.opaque[path] = f"{type(value).__module__}.{type(value).__qualname__}"

    def _walked(self, value: object) -> bool:
        return isinstance(value, dict | list | tuple) or dataclasses.is_dataclass(value) or self._descend(value)


def _parts(value: object) -> Iterator[tuple[str | int, How, object]]:
    if isinstance(value, dict):
        yield from ((key, "item", it) for key, it in list(value.items()) if isinstance(key, str | int))
    elif isinstance(value, list | tuple):
        yield from ((number, "item", it) for number, it in enumerate(value))
    else:
        yield from ((name, "attribute", it) for name, it in list(getattr(value, "__dict__", {}).items()))
        for name in _slots(type(value)):
            if hasattr(value, name):
                yield name, "attribute", getattr(value, name)


def _slots(kind: type) -> tuple[str, ...]:
    """The names of values that are not in an object's `__dict__`."""
    if kind not in _known_slots:
        _known_slots[kind] = _find_slots(kind)
    return _known_slots[kind]


def _find_slots(kind: type) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    names |= dict.fromkeys(getattr(kind, "__struct_fields__", ()))  # as msgspec has it
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
