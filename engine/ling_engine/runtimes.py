"""Finds a runtime by its name: `reference`, `sglang`, or `module:attribute` for one that lives elsewhere."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from ling_api.errors import BadInput, PluginMissing

if TYPE_CHECKING:
    from .runtime import Runtime

_KNOWN = {
    "reference": "ling_engine.reference.runtime:RUNTIME",
    "sglang": "ling_engine.sglang.runtime:RUNTIME",
}


def find(name: str) -> Runtime:
    """Imports it. Raises PluginMissing when its module is not installed, BadInput when the module lacks it."""
    module_name, _, attribute = _KNOWN.get(name, name).partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PluginMissing(
            f"--runtime {name}: cannot import {error.name}; install it in the engine's image"
        ) from error
    if not hasattr(module, attribute):
        raise BadInput(f"--runtime {name}: module {module_name} has no {attribute}")
    return cast("Runtime", getattr(module, attribute))
