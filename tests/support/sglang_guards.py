"""What the plug-in does to SGLang, found out in a process that has it. `RESULT`: a file for what was found, as JSON."""

import asyncio
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader.loader import get_model_loader
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry

from ling_api.errors import PluginMissing
from ling_engine.sglang import plugin, readonly, seat

WRITERS = ("update_weights", "load_lora", "load_weights", "receive_weights", "release_memory", "resume_memory")


def refused(path: str) -> str:
    """What a call of that operation raises; awaited, if it is to be awaited."""
    operation = pkgutil.resolve_name(path)
    try:
        called: Any = operation(mock.Mock(), mock.Mock())
        if inspect.isawaitable(called):
            asyncio.run(_awaited(called))
    except readonly.WeightsAreShared as error:
        return str(error)
    except Exception as error:  # whatever else comes first: it was not refused
        return repr(error)
    return "done"


async def _awaited(called: Any) -> None:
    await called


def missing(call: Any) -> str:
    try:
        call()
    except PluginMissing as error:
        return str(error)
    return "nothing raised"


def main(argv: Sequence[str]) -> int:
    load_plugins()
    told: dict[str, Any] = {"insist": "nothing raised"}
    told["insist"] = missing(plugin.insist)
    told["by itself"] = refused("sglang.srt.eplb.eplb_manager.EPLBManager.rebalance")
    seat._seats.append(mock.Mock())
    told["refused"] = {path: refused(path) for path in readonly.paths()}
    seat._seats.clear()
    told["no seat"] = missing(lambda: get_model_loader(LoadConfig(load_format="private")) and seat.taken())
    first = readonly.paths()[0]
    HookRegistry._patched.discard(first)
    told["unguarded"] = missing(plugin.insist)
    told["loader of an unguarded one"] = missing(lambda: get_model_loader(LoadConfig(load_format="private")))
    HookRegistry._patched.add(first)
    del sys.modules[plugin.LOADER_MODULE]
    told["no loader"] = missing(plugin.insist)
    try:
        get_model_loader(LoadConfig(load_format="private"))
    except ValueError as error:
        told["sglang without our loader"] = str(error)
    writes = [
        f"{owner}.{name}"
        for owner in readonly.TARGETS
        for name in vars(_class(owner))
        if name.startswith(
            ("update_weights", "load_lora", "load_weights", "receive_weights", "release_mem", "resume_mem")
        )
    ]
    told["unnamed writers"] = sorted(set(writes) - set(readonly.paths()))
    Path(argv[0]).write_text(json.dumps(told))
    return 0


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
