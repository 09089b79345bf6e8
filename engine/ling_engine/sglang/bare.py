"""Building a model whose large weights have no storage yet, while all else is made on its device as always.

A constructor makes weights with `torch.empty`, which promises no value; large ones are put on `meta`. Whatever has a
value (rope tables, scales, ones and zeros) is real from the start, so nothing that `__init__` computed is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FunctionType

LEAST: Final = 1 << 18  # bytes of an empty tensor that is left without storage

_MAKERS: Final[frozenset[Callable[..., Any]]] = frozenset({torch.empty, torch.empty_strided})


class Bare(TorchFunctionMode):
    """While it is entered, inside `with device:`, large empty tensors are made on `meta`."""

    def __init__(self, least: int = LEAST) -> None:
        super().__init__()
        self._least = least
        self._written: dict[int, torch.UntypedStorage] = {}  # held, so that no other storage gets its number

    def wrote(self, tensor: torch.Tensor) -> bool:
        """Whether somebody wrote into this `meta` tensor's storage: that value is lost."""
        return int(tensor.untyped_storage()._cdata) in self._written

    def __torch_function__(
        self,
        func: FunctionType | Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _MAKERS and named.get("device") is None:
            made = func(*args, **{**named, "device": "meta"})
            return made if made.numel() * made.element_size() >= self._least else func(*args, **named)
        self._note(func, args)
        return func(*args, **named)

    def _note(self, func: Any, args: tuple[Any, ...]) -> None:
        name = getattr(func, "__name__", "")
        changes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if changes and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            storage = args[0].untyped_storage()
            self._written[int(storage._cdata)] = storage
