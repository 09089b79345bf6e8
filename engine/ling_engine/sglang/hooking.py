"""Hooks of our plug-in that a rank puts in place itself, once it knows that it needs them.

SGLang patches a function once: a hook that comes later for the same one is dropped without a word, and one that cannot
be put in place is only logged. So ours for one function are called by one that SGLang knows, and are looked for.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import PluginMissing

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE, AFTER, AROUND = "BEFORE", "AFTER", "AROUND"
_placed: Final = dict[str, tuple[str, list[Any]]]()  # by path, one kind and the hooks, in the order in which they came


def place(kind: str, path: str, hook: Callable[..., Any]) -> None:
    """`kind`: BEFORE, AFTER or AROUND what `path` names; what hooks before and after return is not used. Once is
    enough; raises PluginMissing where SGLang has no such thing, and ValueError for two kinds on one path."""
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    known, placed = _placed.get(path, (kind, []))
    if known != kind:
        raise ValueError(f"{path} has a hook {known}: one {kind} would not be called")
    if not placed:
        hooks.HookRegistry.register(path, _together(kind, placed), hooks.HookType[kind])
        hooks.HookRegistry.apply_hooks()
    if path not in hooks.HookRegistry._patched:
        raise PluginMissing(f"{path} could not be hooked: this SGLang is another release than the tested one")
    _placed[path] = kind, placed
    if hook not in placed:
        placed.append(hook)


def _together(kind: str, placed: list[Any]) -> Callable[..., Any]:
    """Calls those that are there by then; the first one of AROUND stands nearest to the function."""

    def each(*args: Any, **kwargs: Any) -> None:
        for hook in placed:
            hook(*args, **kwargs)

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for hook in placed:
            original = functools.partial(hook, original)
        return original(*args, **kwargs)

    return around if kind == AROUND else each
