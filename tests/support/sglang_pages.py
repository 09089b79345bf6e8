"""FlashAttention's page tables in the real SGLang, on a CPU. `RESULT`: a file for what was found, as JSON.

A GPU's kernels are not there, and are not called: their package is a stand-in. What sizes a table is SGLang's own.
"""

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sglang.srt.mem_cache import allocation_sizing
from sglang.srt.plugins import hook_registry
from tests.support.sglang_guards import missing

from ling_engine.sglang import pages

CONTEXT = 4096  # tokens
CASES = {"None": (1, 0), "NEXTN": (1, 6), "DSPARK": (16, 9)}  # tokens a page, rows that are verified a round
LAST = 4  # tokens short of the context: where a request's last round begins at the latest


class _Kernels(types.ModuleType):
    """Any name that is asked for."""

    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.Mock()


def backend(page: int, rows: int, *, hooked: bool) -> Any:
    """With its tables for graphs of one request; the constructor's other work needs a GPU and is left out."""
    home = sys.modules[pages._MODULE]
    made = home.FlashAttentionBackend.__new__(home.FlashAttentionBackend)
    made.__dict__.update(
        device="cpu", page_size=page, max_context_len=CONTEXT, topk=min(rows, 1), speculative_num_draft_tokens=rows,
        req_to_token=torch.zeros(2, CONTEXT + row_headroom(page, rows), dtype=torch.int32), use_mla=True,
        _get_scheduler_metadata=None, attention_chunk_size=None, is_encoder_decoder=False, has_swa=False,
        use_sliding_window_kv_pool=False, speculative_step_id=0, speculative_num_steps=0, is_draft_runner=False,
        local_attn_builder=None, has_local_attention=False, skip_prefill=False, is_prefill_aware_swa=False,
        max_num_pages=-(-CONTEXT // page),
    )  # fmt: skip
    if hooked:
        for kind, hook, _ in hook_registry.HookRegistry._hooks[pages.MADE]:
            hook_registry._wrap_fn(lambda *_: None, hook, kind)(made)
    made.init_cuda_graph_state(1, max(rows, 1))
    return made


def entries(made: Any, rows: int) -> int:
    return int((made.target_verify_metadata if rows else made.decode_cuda_graph_metadata)["page_table"].shape[1])


def row_headroom(page: int, rows: int) -> int:
    """Slots of a request behind its context, as SGLang computes it."""
    spec = mock.Mock(
        speculative_algorithm="EAGLE" if rows else None, speculative_num_steps=rows - 1, speculative_eagle_topk=1
    )
    with (
        mock.patch.object(allocation_sizing, "get_spec", return_value=spec),
        mock.patch.object(allocation_sizing, "max_speculative_num_draft_tokens", return_value=rows or None),
        mock.patch.object(allocation_sizing, "get_alloc_page_size", return_value=page),
    ):
        return allocation_sizing.get_req_to_token_extra_context_len()


def main(argv: Sequence[str]) -> int:
    told: dict[str, Any] = {"without a GPU's libraries": missing(pages.ensure_room)}
    told["left alone there"] = pages.MADE not in hook_registry.HookRegistry._hooks
    for name in ("sgl_kernel", "sgl_kernel.flash_attn"):
        sys.modules[name] = _Kernels(name)
    told["with them"] = missing(pages.ensure_room)
    told["again"] = missing(pages.ensure_room)
    told["hooks"] = len(hook_registry.HookRegistry._hooks[pages.MADE])
    for name, (page, rows) in CASES.items():
        needed = -(-(CONTEXT - LAST + 2 * rows) // page)  # the round under way, and one behind it
        found = {f"hooked {hooked}": entries(backend(page, rows, hooked=hooked), rows) for hooked in (False, True)}
        told[name] = found | {"needed": needed}
    with mock.patch.object(pages, "MADE", f"{pages._MODULE}.FlashAttentionBackend.somewhere_else"):
        told["another release"] = missing(pages.ensure_room)
    Path(argv[0]).write_text(json.dumps(told))
    return 0
