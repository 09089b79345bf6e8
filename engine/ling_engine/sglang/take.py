"""Taking on a form: a model that was just built becomes the one that was filled, over the attached memory.

Every tensor of the form gets its place, everything that the model has beyond it is an error, and what was taken on is
looked at once more: paths, dtypes, shapes, strides, who shares with whom, nothing left without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ling_api.errors import AttachCheckFailed, BadInput
from ling_api.tensors import tensor_at

from . import plain, reach
from .form import Form, path_of
from .reach import storage_of
from .storages import begin, flat, pointed, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_api.manifest import Manifest, TensorEntry
    from ling_api.memory.base import Mapping

    from .form import Change, Member
    from .reach import Found, Place

_MISSING = object()


def take_on(walk: Callable[[], Found], mapping: Mapping, manifest: Manifest, absent: frozenset[str]) -> None:
    """Raises AttachCheckFailed that names the first thing that cannot be taken on."""
    form = Form.from_text(manifest.form)
    found = walk()
    _check_places(form, found, absent)
    _Taking(form, found, mapping, manifest).run()
    for gone in form.gone:
        reach.remove(found.owners[gone.owner], gone.key, gone.how, leave_none=gone.none)
    for change in form.changes:
        _change(change, found)
    _check_taken(form, walk(), mapping)


class _Taking:
    def __init__(self, form: Form, found: Found, mapping: Mapping, manifest: Manifest) -> None:
        self._form = form
        self._found = found
        self._mapping = mapping
        self._entries = {entry.name: entry for entry in manifest.tensors}
        self._homes: dict[str, torch.Tensor] = {}
        self._made: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        own = {place.path: place for place in self._found.places}
        for member in self._form.members:
            if member.kind in ("shared", "private"):
                made = self._made.get(member.item)
                if made is None:
                    made = self._made[member.item] = self._make(member, own.get(member.path))
                _hang(self._found, member, made)

    def _make(self, member: Member, own: Place | None) -> torch.Tensor:
        home = self._home(member)
        dtype = getattr(torch, member.dtype)
        tensor = view(home.untyped_storage(), home.device, dtype, member.offset, member.shape, member.stride)
        if member.how != "parameter":
            return tensor
        if not member.fresh and own is not None and isinstance(own.tensor, nn.Parameter):
            made = pointed(own.tensor, tensor)
        else:
            made = nn.Parameter(tensor, requires_grad=member.grad)
        vars(made).update({name: plain.decode(value) for name, value in member.attributes.items()})
        return made

    def _home(self, member: Member) -> torch.Tensor:
        """The flat tensor behind the member: the set's own, or one private copy of it."""
        if member.entry not in self._homes:
            entry = self._entry(member)
            home = tensor_at(self._mapping, flat(entry))
            self._homes[member.entry] = home.clone() if member.kind == "private" else home
        return self._homes[member.entry]

    def _entry(self, member: Member) -> TensorEntry:
        if member.entry not in self._entries:
            raise AttachCheckFailed(f"the set holds no tensor {member.entry}, which {member.path} needs")
        return self._entries[member.entry]


def _check_places(form: Form, found: Found, absent: frozenset[str]) -> None:
    """The model that was built is the one that the form speaks of."""
    said = {member.path: member for member in form.members} | {
        path_of(gone.owner, gone.key, gone.how): None for gone in form.gone
    }
    own = {place.path: place.tensor for place in found.places}
    for path in own:
        if path not in said:
            raise AttachCheckFailed(f"the model has a tensor {path} that the set does not know")
    for member in form.members:
        if member.owner not in found.owners:
            raise AttachCheckFailed(f"the set has a tensor for {member.path}; the model has no {member.owner}")
        if member.kind == "kept" and (member.path not in own or own[member.path].is_meta):
            raise AttachCheckFailed(f"tensor {member.path} should have been made with the model; it was not")
        if member.kind == "absent" and member.path not in absent:
            raise AttachCheckFailed(f"the set leaves {member.path} out; this model needs it")
        _check_form(member, own.get(member.path))


def _check_form(member: Member, tensor: torch.Tensor | None) -> None:
    """A parameter is built here as it was built there; what loading then made of it is the form's word."""
    if tensor is None or member.how != "parameter" or member.built is None:
        return
    built = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    if built != member.built:
        raise AttachCheckFailed(f"parameter {member.path} is built as {built}; the set's was {member.built}")
    if not member.fresh and tensor.requires_grad != member.grad:
        raise AttachCheckFailed(f"parameter {member.path} has requires_grad {tensor.requires_grad}; not so in the set")


def _hang(found: Found, member: Member, tensor: torch.Tensor) -> None:
    try:
        found.put(member.owner, member.key, member.how, tensor)
    except TypeError as error:
        raise AttachCheckFailed(f"tensor {member.path} hangs where nothing can be replaced: {error}") from error


def _change(change: Change, found: Found) -> None:
    path = path_of(change.owner, change.key, change.how)
    if change.owner not in found.owners:
        raise AttachCheckFailed(f"loading changed {path}; the model has no {change.owner}")
    now: object = found.values.get(path, _MISSING)
    expected = [change.before] if change.had else [_MISSING]
    expected += [change.after] if change.has else [_MISSING]
    if now not in expected:
        raise AttachCheckFailed(f"loading changed {path} from {change.before!r}; this model has {now!r} there")
    owner = found.owners[change.owner]
    try:
        if change.has:
            reach.put(owner, change.key, change.how, plain.decode(change.after))
        elif now is not _MISSING:
            reach.remove(owner, change.key, change.how, leave_none=False)
    except (BadInput, TypeError) as error:
        raise AttachCheckFailed(f"loading changed {path}, which cannot be changed here: {error}") from error


def _check_taken(form: Form, found: Found, mapping: Mapping) -> None:
    """What stands there now is what the form says. Raises AttachCheckFailed."""
    now = {place.path: place.tensor for place in found.places}
    shared: dict[str, int] = {}
    for member in form.members:
        tensor = now.pop(member.path, None)
        if tensor is None:
            raise AttachCheckFailed(f"tensor {member.path} is not there after the attach")
        if tensor.is_meta and member.kind != "absent":
            raise AttachCheckFailed(f"tensor {member.path} has no storage after the attach")
        if member.kind not in ("shared", "private"):
            continue
        _check_same(member, tensor)
        if shared.setdefault(member.entry, storage_of(tensor)) != storage_of(tensor):
            raise AttachCheckFailed(f"tensor {member.path} does not share the storage of {member.entry}")
        inside = mapping.address <= tensor.untyped_storage().data_ptr() < mapping.address + mapping.size
        if tensor.numel() and inside != (member.kind == "shared"):
            raise AttachCheckFailed(f"tensor {member.path} is {'not ' if not inside else ''}in the set's memory")
    if now:
        raise AttachCheckFailed(f"the model has a tensor {min(now)} that the set does not know")


def _check_same(member: Member, tensor: torch.Tensor) -> None:
    found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()), begin(tensor))
    wanted = (member.dtype, member.shape, member.stride, member.offset)
    if found != wanted:
        raise AttachCheckFailed(f"tensor {member.path} is {found} after the attach; the set says {wanted}")
