"""Page tables of FlashAttention that are wide enough for a request at its full context.

SGLang 0.5.23 makes them as wide as the context, but tells the kernel of the drafts of a round behind it: for a request
that ends there the kernel would read beyond the table (sglang#34239, `layers/attention/flashattention_backend.py`).
What SGLang keeps of a request's slots has that room (`mem_cache/allocation_sizing.py`); so have the tables with this.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from . import hooking

_MODULE: Final = "sglang.srt.layers.attention.flashattention_backend"
MADE: Final = f"{_MODULE}.FlashAttentionBackend.__init__"
BACKENDS: Final = "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends"


def ensure_room(*_: object, **__: object) -> None:
    """Every back end that this process makes from now on has it. Raises PluginMissing where SGLang is another one.

    Runs before BACKENDS, so in ranks that have their device: importing the back end loads a GPU's libraries. Where
    there are none it cannot be used either.
    """
    try:
        importlib.import_module(_MODULE)
    except ImportError:
        return
    hooking.place(hooking.AFTER, MADE, widen)


def widen(_: object, backend: Any, *args: object, **kwargs: object) -> None:
    """Runs after MADE; what a back end makes for its graphs is made later, from these numbers."""
    width = max(backend.req_to_token.shape[1], backend.max_context_len)
    backend.max_context_len = width
    backend.max_num_pages = -(-width // backend.page_size)
