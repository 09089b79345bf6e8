"""Which tensor of a checkpoint fills which parameter.

Every tensor of the files must have a parameter and every parameter a tensor; whatever is left over on either side is an
error that names it. Tensors of layers behind the last one belong to the NEXTN draft and are set aside.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from ling_engine.reference.tensorfile import Shard, Stored

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_WIDER = {("bfloat16", "float32"), ("float16", "float32")}  # stored -> parameter: loses nothing


def match(found: Sequence[Shard], parameters: Mapping[str, Tensor], layers: int) -> dict[str, str]:
    """Name in the files -> name of the parameter ("" = set aside). Raises BadInput when they do not fit."""
    names: dict[str, str] = {}
    unused: list[str] = []
    for shard in found:
        for tensor in shard.tensors:
            if tensor.name in names:
                raise BadInput(f"{shard.path}: {tensor.name} is in another shard too")
            names[tensor.name] = _parameter_of(tensor.name, parameters, layers) or ""
            if names[tensor.name]:
                _check_shape(shard, tensor, parameters[names[tensor.name]])
            elif not _is_draft(tensor.name, layers):
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


def _parameter_of(name: str, parameters: Mapping[str, Tensor], layers: int) -> str | None:
    other = name.replace(".attention.o_proj.", ".attention.dense.")  # both spellings of MLA's output are in use
    return next((n for n in (name, other) if n in parameters), None)


def _is_draft(name: str, layers: int) -> bool:
    found = _LAYER.match(name)
    return found is not None and int(found[1]) >= layers


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
