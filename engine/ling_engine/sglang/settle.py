"""After the runtime has loaded: what lies where, what must be moved into the set, and the form that says so.

A tensor whose storage the runtime replaced goes to its place when it fits there, else into the set's tail. A tensor
that is no weight but was changed by loading is copied into the tail, for attachers to copy out of; one that was not
changed is what the constructor made, there as here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from ling_api.errors import FillFailed
from ling_api.manifest import ALIGNMENT, TensorEntry
from ling_api.tensors import tensor_at

from . import plain
from .form import Change, Form, Gone, Member
from .storages import begin, flat, grouped, rehang

if TYPE_CHECKING:
    from ling_api.manifest import Layout, TensorSpec
    from ling_api.memory.base import Mapping

    from .form import Kind
    from .plain import Value
    from .reach import Found, Place
    from .storages import Group

_NONE_THERE: Final = object()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A bound model before it loads. `copies`: tensors outside the set, in host memory, by path."""

    found: Found
    kinds: dict[str, type]
    copies: dict[str, torch.Tensor]
    objects: dict[str, torch.Tensor]
    built: dict[str, tuple[str, tuple[int, ...]]]
    attributes: dict[str, dict[str, Value]]  # of parameters


def snapshot(found: Found) -> Snapshot:
    """Keeps parameters as objects and all other tensors as copies, to see later what loading did."""
    return Snapshot(
        found=found,
        kinds={path: type(owner) for path, owner in found.owners.items()},
        copies={
            place.path: place.tensor.detach().to("cpu", copy=True)
            for group in grouped(found.places)
            if not group.parameters
            for place in group.places
        },
        objects={place.path: place.tensor for place in found.places},
        built={
            place.path: (str(place.tensor.dtype).removeprefix("torch."), tuple(place.tensor.shape))
            for place in found.places
        },
        attributes={place.path: _attributes(place.tensor) for place in found.places if place.how == "parameter"},
    )


def _attributes(parameter: torch.Tensor) -> dict[str, Value]:
    """The plain ones; others (a loader's functions) are of no use after loading."""
    return {name: plain.encode(value) for name, value in vars(parameter).items() if plain.is_plain(value)}


@dataclass(slots=True)
class _Home:
    """Where a group of tensors ends up: `offset` in the set, or in its tail; -1: not in the set."""

    group: Group
    kind: Kind
    offset: int = -1
    in_tail: bool = False
    moves: bool = False


class Settling:
    """Planned at once: `tail` is the bytes needed behind the layout. `run` does it. Raises FillFailed."""

    def __init__(
        self, found: Found, before: Snapshot, *, mapping: Mapping, layout: Layout, absent: frozenset[str]
    ) -> None:
        self._found = found
        self._before = before
        self._absent = absent
        self._first = mapping.address
        self._last = mapping.address + layout.nbytes
        self.tail = 0
        _refuse_what_cannot_be_said(found, before)
        self._homes = [self._home(group) for group in grouped(found.places)]
        self._place_moved({entry.name: entry for entry in layout.tensors})

    def _home(self, group: Group) -> _Home:
        if group.meta:
            missing = [place.path for place in group.places if place.path not in self._absent]
            if missing:
                raise FillFailed(f"tensor {missing[0]} has no storage after loading; its weights were not filled")
            return _Home(group, "absent")
        inside = group.nbytes > 0 and self._first <= group.address < self._last
        if inside and (group.address - self._first) % ALIGNMENT == 0:
            return _Home(group, "shared", offset=group.address - self._first)
        if inside or group.parameters:
            return _Home(group, "shared", moves=True)
        if all(self._unchanged(place) for place in group.places):
            return _Home(group, "kept")
        return _Home(group, "private", moves=True)

    def _unchanged(self, place: Place) -> bool:
        before = self._before.copies.get(place.path)
        now = place.tensor
        if before is None or (before.shape, before.dtype) != (now.shape, now.dtype):
            return False
        return torch.equal(_bits(before), _bits(now.detach().to("cpu")))

    def _place_moved(self, entries: dict[str, TensorEntry]) -> None:
        taken = {home.offset for home in self._homes}
        for home in self._homes:
            if not home.moves:
                continue
            former = [entries[place.path] for place in home.group.places if place.path in entries]
            fitting = [one for one in former if one.offset not in taken and one.nbytes >= home.group.nbytes > 0]
            if fitting:
                home.offset = fitting[0].offset
                taken.add(home.offset)
            else:
                home.offset, home.in_tail = self.tail, True
                self.tail += -(-home.group.nbytes // ALIGNMENT) * ALIGNMENT

    def run(self, mapping: Mapping, start: int) -> tuple[tuple[TensorEntry, ...], str]:
        """Moves everything; the tail begins at `start`. The set's tensors, and the form as text."""
        entries: list[TensorEntry] = []
        members: list[Member] = []
        numbers: dict[int, int] = {}
        for home in self._homes:
            spec = home.group.spec()
            at = home.offset + (start if home.in_tail else 0)
            rows = [self._member(place, home, spec, numbers) for place in home.group.places]
            members.extend(rows)
            if home.kind in ("shared", "private"):
                entry = TensorEntry(spec.name, spec.dtype, spec.shape, spec.stride, at, spec.nbytes)
                entries.append(entry)
                self._move(home, mapping, entry)
        form = Form(members=tuple(members), changes=_changes(self._before.found, self._found), gone=tuple(self._gone()))
        return tuple(entries), form.to_text()

    def _move(self, home: _Home, mapping: Mapping, entry: TensorEntry) -> None:
        if not home.moves:
            return
        place = tensor_at(mapping, flat(entry))
        place.copy_(home.group.bytes())
        if home.kind == "shared":
            rehang(self._found, home.group, place)

    def _member(self, place: Place, home: _Home, spec: TensorSpec, numbers: dict[int, int]) -> Member:
        tensor = place.tensor
        return Member(
            owner=place.owner,
            key=place.key,
            how=place.how,
            kind=home.kind,
            item=numbers.setdefault(id(tensor), len(numbers)),
            entry=spec.name if home.kind in ("shared", "private") else "",
            offset=begin(tensor) - home.group.start,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            grad=tensor.requires_grad,
            fresh=self._fresh(place),
            attributes=self._set_by_loading(place),
            built=self._built(place),
        )

    def _built(self, place: Place) -> tuple[str, tuple[int, ...]] | None:
        """What its constructor made of a parameter."""
        before = self._before.built.get(place.path)
        return before if place.how == "parameter" else None

    def _fresh(self, place: Place) -> bool:
        return place.how == "parameter" and self._before.objects.get(place.path) is not place.tensor

    def _set_by_loading(self, place: Place) -> dict[str, Value]:
        if place.how != "parameter":
            return {}
        before = {} if self._fresh(place) else self._before.attributes.get(place.path, {})
        now = _attributes(place.tensor)
        return {name: value for name, value in now.items() if name not in before or before[name] != value}

    def _gone(self) -> list[Gone]:
        now = {place.path for place in self._found.places}
        return [
            Gone(owner=place.owner, key=place.key, how=place.how, none=self._none_hangs_at(place))
            for place in self._before.found.places
            if place.path not in now
        ]

    def _none_hangs_at(self, place: Place) -> bool:
        owner = self._found.owners.get(place.owner)
        if isinstance(owner, nn.Module) and (place.key in owner._parameters or place.key in owner._buffers):
            return True  # the walker passes by what is None
        return place.path in self._found.values


def _refuse_what_cannot_be_said(found: Found, before: Snapshot) -> None:
    """Raises FillFailed for objects that loading made and another process could not make again."""
    for path, kind in found.opaque.items():
        if before.found.opaque.get(path) != kind and path not in before.kinds:
            raise FillFailed(f"loading put a {kind} at {path}; an engine that attaches could not have it")
    for path, owner in found.owners.items():
        if before.kinds.get(path) is not type(owner):
            made = type(owner).__qualname__
            raise FillFailed(f"loading put a {made} at {path}; an engine that attaches could not have it")


def _changes(before: Found, now: Found) -> tuple[Change, ...]:
    changes = []
    hung = {place.path for place in (*before.places, *now.places)}
    for path in dict.fromkeys((*before.values, *now.values)):
        old, new = before.values.get(path, _NONE_THERE), now.values.get(path, _NONE_THERE)
        if path in hung or (type(old) is type(new) and old == new):
            continue  # a tensor that came or went is told as that
        owner, key, how = (now.where if path in now.where else before.where)[path]
        changes.append(
            Change(
                owner=owner,
                key=key,
                how=how,
                had=old is not _NONE_THERE,
                before=None if old is _NONE_THERE else before.values[path],
                has=new is not _NONE_THERE,
                after=None if new is _NONE_THERE else now.values[path],
            )
        )
    return tuple(changes)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Compared as bytes: a NaN equals itself."""
    return tensor.contiguous().flatten().view(torch.uint8)
