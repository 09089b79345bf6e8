"""The memory that a server of the reference engine needs beside the weights. Pure arithmetic, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.memoryplan import MemoryPlan
from ling_engine.reference.generate import PREFILL_ROWS

if TYPE_CHECKING:
    from ling_engine.reference.config import Config

_FP32 = 4
_ITEM = {"float32": 4, "bfloat16": 2}


def plan_of(c: Config, context: int) -> MemoryPlan:
    """For one sequence of `context` tokens: MLA caches, KDA states, and an upper bound of a step's activations."""
    mla = c.kda.count(False)
    cache = mla * context * (c.kv_lora_rank + c.qk_rope_head_dim) * _ITEM[c.dtype]
    turns = context * c.qk_rope_head_dim * _FP32
    size = c.num_attention_heads * c.head_dim
    memory = c.num_attention_heads * c.head_dim**2 * _FP32
    conv = (c.short_conv_kernel_size - 1) * 3 * size * _ITEM[c.dtype]
    return MemoryPlan(
        {
            "kv": cache + turns,
            "states": 3 * c.kda.count(True) * (memory + conv),  # the empty ones, the committed ones, a step's
            "activations": _activations(c, context),
        }
    )


def _activations(c: Config, context: int) -> int:
    """Of the largest layer, plus the stream and the logits; fp32 everywhere, which bf16 stays below."""
    rows = min(PREFILL_ROWS, context)
    heads, size = c.num_attention_heads, c.num_attention_heads * c.head_dim
    kda = rows * size * (3 * c.short_conv_kernel_size + 24) + heads * c.head_dim**2
    mla = 3 * rows * heads * context + 2 * context * heads * (c.qk_nope_head_dim + c.v_head_dim)
    mla += 4 * rows * heads * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim)
    inner = max(c.intermediate_size, c.moe_intermediate_size, c.moe_shared_expert_intermediate_size)
    ffn = 4 * rows * (inner + c.num_experts)
    stream = 6 * rows * c.hidden_size + 2 * c.vocab_size
    return _FP32 * (stream + max(kda if any(c.kda) else 0, mla if not all(c.kda) else 0, ffn))
