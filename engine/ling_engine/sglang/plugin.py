"""SGLang's entry point `ling`: gives it our loader, refuses every operation that writes weights, reports failures,
widens FlashAttention's page tables, puts our kernels in place where they are wanted, lets one process tune at a time
and a standby sleep.

SGLang only logs it when a plug-in or a hook fails, and goes on without; so whoever depends on this asks `insist`.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from ling_api.errors import PluginMissing

from . import accepting, draft_fp8, few_rows, pages, ranks, readonly, tuning, wakefulness

LOADER_MODULE = "sglang.private.private_model_loader"  # what --load-format private imports
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_WATCHED = (f"{_SCHEDULER}.__init__", f"{_SCHEDULER}.run_event_loop")


def install() -> None:
    """Called by SGLang in each of its processes, and by the zygote before all of them. Imports SGLang."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    module = types.ModuleType(LOADER_MODULE)
    module.PrivateModelLoader = importlib.import_module("ling_engine.sglang.loader").PrivateModelLoader  # type: ignore[attr-defined]
    sys.modules[LOADER_MODULE] = module
    for path in readonly.paths():
        hooks.HookRegistry.register(path, readonly.refusal(path), hooks.HookType.BEFORE)
    for path in _WATCHED:
        hooks.HookRegistry.register(path, ranks.watched, hooks.HookType.AROUND)
    hooks.HookRegistry.register(tuning.TUNING, tuning.alone, hooks.HookType.AROUND)
    hooks.HookRegistry.register(wakefulness.SLEEPER, wakefulness.give, hooks.HookType.AFTER)
    for ensure in (pages.ensure_room, few_rows.ensure, accepting.ensure, draft_fp8.ensure):
        hooks.HookRegistry.register(pages.BACKENDS, ensure, hooks.HookType.BEFORE)


def insist() -> None:
    """Raises PluginMissing unless all of `install` is in force in this process."""
    hooks: Any = sys.modules.get("sglang.srt.plugins.hook_registry")
    loader = sys.modules.get(LOADER_MODULE)
    if hooks is None or loader is None:
        raise PluginMissing("SGLang runs without the plug-in ling; see that the image has the package ling installed")
    missing = [
        path
        for path in (*readonly.paths(), *_WATCHED, pages.BACKENDS, tuning.TUNING, wakefulness.SLEEPER)
        if path not in hooks.HookRegistry._patched
    ]
    if missing:
        raise PluginMissing(f"{missing[0]} could not be guarded: this SGLang is another release than the tested one")
