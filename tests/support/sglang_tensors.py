"""Every tensor that a model of SGLang can reach, described so that two processes can compare. SGLang's environment.

Written apart from the loader's own walk, which it is there to judge: whatever hangs on a module, in its containers or
in SGLang's own objects below it.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_DEEPEST = 6
_PLAIN = (str, bytes, int, float, bool, type(None), type, torch.dtype, torch.device, torch.Size)


def describe(model: nn.Module) -> dict[str, Any]:
    """By path: what the tensor is and a hash of its bytes; the groups of paths that share one storage; plain values."""
    tensors: dict[str, Any] = {}
    storages: dict[int, list[str]] = {}
    for path, how, tensor in reached(model):
        storages.setdefault(tensor.untyped_storage()._cdata, []).append(path)
        tensors[path] = {
            "how": how,
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "class": type(tensor).__name__,
            "grad": tensor.requires_grad,
            "attributes": sorted(vars(tensor)),
            "sha256": _digest(tensor),
        }
    shared = sorted(sorted(paths) for paths in storages.values() if len(paths) > 1)
    return {"tensors": tensors, "shared": shared, "values": dict(sorted(_values(model)))}


def reached(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Path, where it hangs, tensor: one that hangs in several places comes several times."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        at = f"{name}." if name else ""
        for how, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            yield from ((at + key, how, tensor) for key, tensor in held.items() if tensor is not None)
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules") and not key.endswith("_hooks"):
                yield from _below(at + key, value, seen, 0)


def _below(path: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, "attribute", value
        return
    if isinstance(value, (*_PLAIN, nn.Module)) or depth > _DEEPEST or id(value) in seen:
        return
    seen.add(id(value))
    for key, inner in _inside(value):
        yield from _below(f"{path}[{key!r}]", inner, seen, depth + 1)


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif type(value).__module__.startswith("sglang.") and "distributed" not in type(value).__module__:
        names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__struct_fields__", ())]
        yield from ((name, getattr(value, name, None)) for name in dict.fromkeys(names))


def _values(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Flags and numbers of modules and of what applies their weights."""
    for name, module in model.named_modules():
        for holder in (module, getattr(module, "quant_method", None)):
            for key, value in vars(holder).items() if holder is not None else ():
                if isinstance(value, int | float | str | bool):
                    yield f"{name}:{type(holder).__name__}.{key}", value


def _digest(tensor: Tensor) -> str:
    if tensor.is_meta:
        return "no storage"
    raw = tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()[:24]
