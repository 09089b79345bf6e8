"""Which tensor of a checkpoint fills which parameter.

Every tensor of the files must have a parameter and every parameter a tensor; whatever is left over on either side is an
error that names it. A checkpoint may hold tensors of another weight set (the target's files those of the NEXTN draft):
a set's naming says which are its own and under which name; the others are set aside.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from ling_engine.reference.tensorfile import Shard, Stored

    type Naming = Callable[[str], str | None]  # name in the files -> the parameter's; None = set aside

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_DENSE = re.compile(r"(?:^|(?<=\.))attention\.o_proj\.")
_BORROWED = ("confidence_head.", "embed_tokens.", "lm_head.")  # of no use to a DSPARK draft, or the target's
_WIDER = {("bfloat16", "float32"), ("float16", "float32")}  # stored -> parameter: loses nothing


def target(layers: int) -> Naming:
    """The target of so many layers: layers behind the last one belong to the NEXTN draft."""

    def name(stored: str) -> str | None:
        layer = _LAYER.match(stored)
        return None if layer and int(layer[1]) >= layers else stored

    return name


def nextn(layers: int) -> Naming:
    """The layer behind the target's last one."""
    prefix = f"model.layers.{layers}."
    return lambda stored: stored.removeprefix(prefix) if stored.startswith(prefix) else None


def dspark(stored: str) -> str | None:
    """A DSPARK draft's own checkpoint."""
    name = stored.removeprefix("model.")
    return None if name.startswith(_BORROWED) else name


def match(found: Sequence[Shard], parameters: Mapping[str, Tensor], naming: Naming) -> dict[str, str]:
    """Name in the files -> name of the parameter ("" = set aside). Raises BadInput when they do not fit."""
    names: dict[str, str] = {}
    unused: list[str] = []
    for shard in found:
        for tensor in shard.tensors:
            if tensor.name in names:
                raise BadInput(f"{shard.path}: {tensor.name} is in another shard too")
            wanted = naming(tensor.name)
            names[tensor.name] = name = "" if wanted is None else _parameter_of(wanted, parameters)
            if name:
                _check_shape(shard, tensor, parameters[name])
            elif wanted is not None:
                unused.append(tensor.name)
    folder = found[0].path.parent
    missing = sorted(parameters.keys() - set(names.values()))
    if unused:
        raise BadInput(f"{folder}: the model has no parameter for {_listed(unused)}")
    if missing:
        raise BadInput(f"{folder}: no tensor for {_listed(missing)}")
    if len(parameters) < sum(1 for name in names.values() if name):
        raise BadInput(f"{folder}: an output projection is stored as dense and as o_proj; keep one of them")
    return names


def _parameter_of(name: str, parameters: Mapping[str, Tensor]) -> str:
    other = _DENSE.sub("attention.dense.", name)  # both spellings of MLA's output are in use
    return next((n for n in (name, other) if n in parameters), "")


def _check_shape(shard: Shard, tensor: Stored, parameter: Tensor) -> None:
    wanted = str(parameter.dtype).removeprefix("torch.")
    if tensor.shape != tuple(parameter.shape):
        raise BadInput(
            f"{shard.path}: {tensor.name} has shape {tensor.shape}; config.json asks for {tuple(parameter.shape)}"
        )
    if tensor.dtype != wanted and (tensor.dtype, wanted) not in _WIDER:
        raise BadInput(f"{shard.path}: {tensor.name} is stored as {tensor.dtype}; config.json asks for {wanted}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
