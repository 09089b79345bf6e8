"""SGLang's environment, parsed when it changes instead of whenever it is asked for: a hook.

SGLang 0.5.23 asks for some dozen of its 800 variables in every step (`environ.py`: `EnvField.get`), each time by
encoding the name, looking it up, decoding and parsing the text. While a host is what a step waits for, that counts.
Here a variable answers what it answered last, as long as its bytes in the environment are the same object; so what
`set`, `override` and `clear` change, or a write to `os.environ`, is seen at once.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import PluginMissing

from . import hook_variables

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_MARK: Final = "_ling_quick"  # of a variable that answers so already


def ensure(*_: object, **__: object) -> None:
    """In ranks, where it is wanted. Raises BadInput, and PluginMissing where SGLang is another one."""
    if not hook_variables.environment_once(os.environ):
        return
    module: Any = importlib.import_module("sglang.srt.environ")
    fields = vars(getattr(module, "Envs", None) or object)
    found = [one for one in fields.values() if hasattr(module, "EnvField") and isinstance(one, module.EnvField)]
    if not found or not hasattr(os.environ, "_data"):
        raise PluginMissing("sglang.srt.environ could not be hooked: this SGLang is another release than the tested one")
    for field in found:
        if not getattr(field, _MARK, False) and _is_plain(field):
            setattr(field, _MARK, True)
            field.get = quick(field.name, field.get)
    _log.info("environment=once variables=%d", len(found))


def _is_plain(field: Any) -> bool:
    """Whether its answer depends on nothing but its own text: no default that is computed, no older name, no file."""
    return not callable(field.default) and not hasattr(field, "deprecated_name") and type(field).__name__ != "EnvJSON"


def quick(name: str, slow: Callable[[], Any]) -> Callable[[], Any]:
    """What `slow` says of the variable, asked again when its bytes are others."""
    held: Any = os.environ._data  # type: ignore[attr-defined]
    key = os.environ.encodekey(name)  # type: ignore[attr-defined]
    last: object = held  # no variable's bytes
    said: Any = None

    def get() -> Any:
        nonlocal last, said
        now = held.get(key)
        if now is not last:
            said, last = slow(), now
        return said

    return get
