"""The memory plan of an SGLang engine: private bytes of one rank beside its weights, and what SGLang is told of it.

Everything that SGLang would otherwise size by what it finds free is computed here and passed on its command line, so
that the first engine on a GPU leaves room for a second. Caches are exact: the arithmetic of SGLang's own pools
(`mem_cache/memory_pool.py`, `configs/mamba_utils.py`). The rest comes from CONSTANTS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ling_api.memoryplan import MemoryPlan
from ling_engine.decoding import DSPARK, NEXTN, NONE

if TYPE_CHECKING:
    from .shape import Shape

MIB: Final = 1 << 20
_FP32, _BF16 = 4, 2
_LAYERS: Final = 12  # of the model that the graphs were measured with


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Bytes that can only be measured. `measured` says where and how; "" = assumed, and why."""

    nbytes: int
    source: str
    measured: bool = True


_H200 = "H200, SGLang 0.5.23, 12 layers, 64 experts, TP1, warmed up"
CONSTANTS: Final = {
    "context": Constant(nbytes=682 * MIB, source=f"{_H200}: stopped just before the weights, 692 of 10 idle MiB"),
    "communicators": Constant(
        nbytes=1024 * MIB, source="TP > 1: NCCL's and the custom all-reduce's buffers; not measured", measured=False
    ),
    f"workspaces {NONE}": Constant(nbytes=352 * MIB, source=f"{_H200}: 1,092 MiB in all less context, graphs, pools"),
    f"workspaces {NEXTN}": Constant(nbytes=448 * MIB, source=f"{_H200}: 1,861 MiB in all less context, graphs, pools"),
    f"workspaces {DSPARK}": Constant(nbytes=672 * MIB, source=f"{_H200}: 1,761 MiB in all less context, graphs, pools"),
    # SGLang logs GiB as GB.
    f"first graph {NONE}": Constant(nbytes=52 * MIB, source=f"{_H200}: 0.05 GiB logged for batch size 1"),
    f"first graph {NEXTN}": Constant(nbytes=420 * MIB, source=f"{_H200}: 0.30 + 0.06 + 0.05 GiB logged, batch size 1"),
    f"first graph {DSPARK}": Constant(nbytes=164 * MIB, source=f"{_H200}: 0.14 + 0.02 GiB logged for batch size 1"),
    f"next graph {NONE}": Constant(nbytes=52 * MIB, source="as the first; not measured", measured=False),
    f"next graph {NEXTN}": Constant(nbytes=352 * MIB, source=f"{_H200}: 1.44 GiB for batch sizes 1 to 4"),
    f"next graph {DSPARK}": Constant(nbytes=352 * MIB, source="as NEXTN's; not measured", measured=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the caches are made for."""

    algorithm: str
    tp: int
    concurrency: int
    context_length: int
    draft_tokens: int  # rows that are verified a round; 0 without speculation
    page: int  # tokens
    ring: int  # entries of the replay ring a state slot; 0 = none
    prefill_rows: int  # tokens of a prompt computed at once
    draft_fp8: tuple[str, ...] = ()  # parts of the draft of which there is a copy in fp8 (`hook_variables.DRAFTS`)


def total_tokens(load: Load) -> int:
    """Slots of the token pool: every request at its full length, with the drafts that a round writes behind it.

    SGLang reserves two rounds a request while it overlaps them (`mem_cache/allocation_sizing.py`), and admits a request
    only where a page and a token more are free than it may become (`managers/schedule_policy.py`): one that would fill
    a smaller pool waits for ever.
    """
    one = load.context_length + 2 * load.draft_tokens + load.page + 1
    return load.concurrency * (-(-one // load.page) * load.page)


def graph_sizes(concurrency: int) -> tuple[int, ...]:
    """Batch sizes to capture: each of the small ones, then every fourth, and the largest."""
    return tuple(sorted({*range(1, min(concurrency, 4) + 1), *range(8, concurrency, 4), concurrency}))


def plan(shape: Shape, load: Load) -> MemoryPlan:
    """Of one rank, bytes by purpose."""
    sizes = graph_sizes(load.concurrency)
    first, following = (CONSTANTS[f"{which} graph {load.algorithm}"].nbytes for which in ("first", "next"))
    return MemoryPlan(
        {
            "context": CONSTANTS["context"].nbytes,
            "communicators": CONSTANTS["communicators"].nbytes if load.tp > 1 else 0,
            "workspaces": CONSTANTS[f"workspaces {load.algorithm}"].nbytes + page_tables(load),
            "graphs": (first + following * (len(sizes) - 1)) * math.ceil(shape.layers / _LAYERS),
            "kv": total_tokens(load) * kv_bytes_a_token(shape),
            "draft_kv": total_tokens(load) * draft_bytes_a_token(shape, load.algorithm, load.tp),
            "states": state_bytes(shape, load),
            "activations": _activations(shape, load),
            "draft_fp8": sum(fp8_bytes(shape, part, load.tp) for part in load.draft_fp8),
        }
    )


def page_tables(load: Load) -> int:
    """Bytes of FlashAttention's, at most: each back end has four of int32 a request, and three index vectors of int64,
    as wide as the context in pages (`layers/attention/flashattention_backend.py`). NEXTN has a back end a step, DSPARK
    two."""
    backends = {NEXTN: 1 + load.draft_tokens, DSPARK: 2}.get(load.algorithm, 1)
    return backends * -(-load.context_length // load.page) * (4 * 4 * load.concurrency + 3 * 8)


def kv_bytes_a_token(shape: Shape) -> int:
    """The MLA layers' latent cache, which every rank holds whole."""
    return shape.mla_layers * (shape.kv_lora + shape.rope) * _BF16


def draft_bytes_a_token(shape: Shape, algorithm: str, tp: int) -> int:
    """The draft's own cache, which has a slot for every slot of the target's."""
    if algorithm == NEXTN:
        return (shape.kv_lora + shape.rope) * _BF16
    if algorithm == DSPARK and shape.draft is not None:
        return shape.draft.layers * 2 * shape.draft.kv_heads * shape.draft.head_dim * _BF16 // tp
    return 0


def fp8_bytes(shape: Shape, part: str, tp: int) -> int:
    """Of one rank: a draft's matrices in fp8, and a scale in fp32 for each column. Of the layers keys and values twice:
    SGLang computes those of the target's rows for all layers at once."""
    if part == "head":
        return shape.vocab * (shape.hidden + _FP32) // tp
    draft = shape.draft
    if draft is None:
        return 0
    if part == "markov":
        return shape.vocab * (draft.markov_rank + _FP32)
    wide, keys = draft.heads * draft.head_dim, draft.kv_heads * draft.head_dim
    columns = wide + 4 * keys + 2 * draft.intermediate
    layer = columns * (shape.hidden + _FP32) + shape.hidden * (wide + draft.intermediate + 2 * _FP32)
    return (draft.layers * layer + shape.hidden * (draft.taps * shape.hidden + _FP32)) // tp


def state_bytes(shape: Shape, load: Load) -> int:
    """KDA states: one slot a request and one for padding; with speculation what a round may have to take back."""
    slots, heads, width = load.concurrency + 1, shape.heads // load.tp, shape.head_dim
    state = heads * width * width * _FP32
    conv = (shape.conv - 1) * 3 * heads * width * _BF16
    slot = state + conv + load.ring * heads * (4 * width * _BF16 + _FP32 + width * _FP32)
    back = load.draft_tokens * (conv + (0 if load.ring else state))
    return shape.kda_layers * slots * (slot + back)


def fraction(weights: int, private: MemoryPlan) -> float:
    """What SGLang calls the static fraction: of the memory free before loading, the part for weights and pools.

    The least that leaves the pools their planned size when only weights and plan are free (context and workspaces are
    there before SGLang looks); with more free memory its token limit decides. Rounded up to thousandths.
    """
    pools = sum(private.private[purpose] for purpose in ("kv", "draft_kv", "states"))
    later = sum(private.private[purpose] for purpose in ("graphs", "activations", "draft_fp8"))
    return min(math.ceil((weights + pools) / (weights + pools + later) * 1000) / 1000, 0.99)


def _activations(shape: Shape, load: Load) -> int:
    """Of a prompt's piece in the widest layer, in bf16, and a round's logits in fp32, twice; not measured."""
    rows = load.prefill_rows
    pairs = rows * (shape.experts_per_token + 1)
    moe = pairs * (3 * shape.moe_intermediate // load.tp + shape.hidden)
    kda = rows * 12 * shape.heads * shape.head_dim // load.tp
    chunks = -(-rows // 64) * shape.heads // load.tp * shape.head_dim**2  # the chunked form's states
    attention = rows * shape.heads // load.tp * (shape.nope + shape.rope + 2 * shape.v_dim) * 2
    stream = 8 * rows * shape.hidden
    logits = 2 * max(load.concurrency * max(load.draft_tokens, 1), 1) * shape.vocab * _FP32
    return _BF16 * (stream + max(moe, kda + 2 * chunks, attention)) + logits
