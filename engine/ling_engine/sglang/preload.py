"""Everything that a server of SGLang imports, imported once in the zygote; and the tokenizer, loaded once for all.

SGLang itself imports the same 9,000 modules in each of its processes, one after the other.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from . import late

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)
_MODULES = (
    "transformers",
    "sglang.launch_server",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.tp_worker",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.speculative.eagle_worker_v2",
    "sglang.srt.speculative.dspark_components.dspark_worker_v2",
    "sglang.srt.models.bailing_moe_v3",
    "sglang.srt.models.bailing_moe_nextn",
    "sglang.srt.models.dspark",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


REGISTRY = "SGLANG_EXTERNAL_MODEL_PACKAGE"  # whose models are imported instead of all
ARCHITECTURES = "ling_engine.sglang.architectures"


def modules(architecture: str) -> None:
    """Imports them; those that only a GPU's packages bring are looked for when they are needed. The checkpoint's
    architecture is known to SGLang's registry then."""
    for name in _MODULES:
        importlib.import_module(name)
    for name in late.MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            _log.debug("late=missing module=%s reason=%r", name, str(error))
    registry = importlib.import_module("sglang.srt.models.registry").ModelRegistry
    if architecture not in registry.models:
        registry.get_supported_archs()  # imports every model


def plugins() -> None:
    """SGLang's plug-ins, ours among them, take their places once; every fork has them."""
    logging.getLogger("sglang.srt.plugins").setLevel(logging.WARNING)  # two lines a hook
    importlib.import_module("sglang.srt.plugins").load_plugins()


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def tokenizer(folder: Path) -> None:
    """Loads it; from now on SGLang's `get_tokenizer` gives this very object for this folder.

    SGLang loads it four times in one server: a big vocabulary costs seconds each.
    """
    home = importlib.import_module("sglang.srt.utils.hf_transformers.tokenizer")
    original, path = home.get_tokenizer, str(folder)
    loaded = original(path, tokenizer_mode="auto", trust_remote_code=True)

    def get_tokenizer(name: str, *args: Any, **kwargs: Any) -> Any:
        return loaded if str(name) == path else original(name, *args, **kwargs)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("get_tokenizer") is original:
            module.get_tokenizer = get_tokenizer  # type: ignore[attr-defined]
