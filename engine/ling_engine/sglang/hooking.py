"""Hooks of our plug-in that a rank puts in place itself, once it knows that it needs them.

SGLang only logs a hook that cannot be put in place, and goes on without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ling_api.errors import PluginMissing

if TYPE_CHECKING:
    from collections.abc import Callable


def place(kind: str, path: str, hook: Callable[..., Any]) -> None:
    """`kind`: BEFORE, AFTER or AROUND what `path` names. Once is enough; raises PluginMissing where SGLang has no such
    thing."""
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    if path not in hooks.HookRegistry._hooks:
        hooks.HookRegistry.register(path, hook, hooks.HookType[kind])
        hooks.HookRegistry.apply_hooks()
    if path not in hooks.HookRegistry._patched:
        raise PluginMissing(f"{path} could not be hooked: this SGLang is another release than the tested one")
