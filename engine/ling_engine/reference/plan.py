"""The memory that a server of the reference engine needs beside the weights. Pure arithmetic, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.memoryplan import MemoryPlan
from ling_engine.reference.generate import PREFILL_ROWS
from ling_engine.reference.mtp import layer_config

if TYPE_CHECKING:
    from ling_engine.reference.config import Config
    from ling_engine.reference.dspark_config import DsparkConfig

_FP32 = 4
_ITEM = {"float32": 4, "bfloat16": 2}


def plan_of(c: Config, context: int, window: int, draft: dict[str, int]) -> MemoryPlan:
    """For one sequence of `context` tokens and the `window` drafts behind it, beside what the draft itself needs."""
    states, rows = c.kda.count(True), max(min(PREFILL_ROWS, context), window + 1)
    heads, size = c.num_attention_heads, c.num_attention_heads * c.head_dim
    memory = heads * c.head_dim**2 * _FP32
    conv = (c.short_conv_kernel_size - 1) * 3 * size * _ITEM[c.dtype]
    step = rows * ((3 * size + heads) * _FP32 + 3 * size * _ITEM[c.dtype])  # what a layer keeps until the commit
    own = {
        "kv": _caches(c, context + window),
        "states": states * (3 * (memory + conv) + step),  # the empty ones, the committed ones, a step's
        "activations": _activations(c, context + window),
    }
    return MemoryPlan(own | draft)


def nextn(c: Config, room: int) -> dict[str, int]:
    """The NEXTN layer's: a cache of `room` tokens, and a step's activations."""
    layer = layer_config(c)
    return {"draft_kv": _caches(layer, room), "draft_activations": _activations(layer, room)}


def dspark(d: DsparkConfig, room: int, window: int) -> dict[str, int]:
    """A DSPARK draft's: keys and values of `room` tokens, and the activations of a prompt's piece or of a block."""
    rows, taps = max(min(PREFILL_ROWS, room), window), len(d.target_layer_ids)
    kv = 2 * room * d.num_key_value_heads * d.head_dim * _ITEM[d.dtype]
    size = d.num_attention_heads * d.head_dim
    attention = 2 * room * size + 3 * d.num_attention_heads * window * room + 6 * rows * size
    stream = rows * (taps + 6) * d.hidden_size + 4 * rows * d.intermediate_size + 2 * window * d.vocab_size
    return {
        "draft_kv": d.num_hidden_layers * kv + room * d.head_dim * _FP32,
        "draft_activations": _FP32 * (attention + stream),
    }


def _caches(c: Config, room: int) -> int:
    """MLA caches and rotations."""
    cache = c.kda.count(False) * room * (c.kv_lora_rank + c.qk_rope_head_dim) * _ITEM[c.dtype]
    return cache + room * c.qk_rope_head_dim * _FP32


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
