"""Bytes of the weight sets that SGLang's classes make of a checkpoint, per role and rank. Pure arithmetic.

Told to the agent before a server exists, so that it can say whether everything fits; what is then deposited counts.
Each parameter is a storage of its own that starts at a multiple of 512 bytes. A test compares with SGLang's own
classes. On a GPU the shared expert is one expert more of the fused tensor; the bytes are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.manifest import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .shape import DraftShape, Shape

_FP32 = 4
_ITEM = {"bfloat16": 2, "float16": 2, "float32": 4}
_FP8_BLOCK = 128  # rows and columns that share one scale


def set_bytes(shape: Shape, roles: tuple[str, ...], tp: int, granularity: int) -> dict[str, int]:
    """By role, of one rank, rounded up to whole granules."""
    parts = {"target": _target, "nextn": _nextn, "dspark": _dspark}
    return {role: _rounded(sum(map(_aligned, parts[role](shape, tp))), granularity) for role in roles}


def _target(s: Shape, tp: int) -> Iterator[int]:
    yield from (s.vocab * s.hidden * _item(s) // tp for _ in ("embedding", "head"))
    yield s.hidden * _item(s)
    for layer in range(s.layers):
        yield from (s.hidden * _item(s),) * 2
        yield from _dense(s, tp) if layer < s.dense_layers else _moe(s, tp)
    for _ in range(s.kda_layers):
        yield from _kda(s, tp)
    for _ in range(s.mla_layers):
        yield from _mla(s, tp)


def _nextn(s: Shape, tp: int) -> Iterator[int]:
    """Embedding and head are the target's."""
    yield from (s.hidden * _item(s),) * 5
    yield from _matrix(s, s.hidden, 2 * s.hidden)
    yield from _mla(s, tp)
    yield from _moe(s, tp)


def _dspark(s: Shape, tp: int) -> Iterator[int]:
    """Embedding and head are the target's; drafts are not quantized."""
    d: DraftShape | None = s.draft
    if d is None:
        return
    item = _ITEM[s.dtype]
    yield d.taps * s.hidden * s.hidden * item
    yield from (s.hidden * item,) * 2
    yield from (s.vocab * d.markov_rank * item,) * 2
    for _ in range(d.layers):
        yield (d.heads + 2 * d.kv_heads) * d.head_dim * s.hidden * item // tp
        yield d.heads * d.head_dim * s.hidden * item // tp
        yield from (d.head_dim * item,) * 2
        yield 2 * d.intermediate * s.hidden * item // tp
        yield d.intermediate * s.hidden * item // tp
        yield from (s.hidden * item,) * 2


def _kda(s: Shape, tp: int) -> Iterator[int]:
    width = s.heads * s.head_dim // tp
    yield from (width * _FP32, s.heads * _FP32 // tp)  # dt_bias, A_log
    yield 3 * width * s.conv * _FP32
    yield s.head_dim * _item(s)
    if s.quantization:  # b_proj stays apart and unquantized
        yield from _matrix(s, 5 * width, s.hidden)
        yield s.heads * s.hidden * _item(s) // tp
    else:
        yield (5 * width + s.heads // tp) * s.hidden * _item(s)
    yield from _matrix(s, s.hidden, width)


def _mla(s: Shape, tp: int) -> Iterator[int]:
    heads = s.heads // tp
    yield from _matrix(s, heads * (s.nope + s.rope), s.hidden)
    yield from _matrix(s, s.kv_lora + s.rope, s.hidden)
    yield from _matrix(s, heads * (s.nope + s.v_dim), s.kv_lora)
    yield from _matrix(s, s.hidden, heads * s.v_dim)
    yield s.kv_lora * _item(s)
    yield heads * s.nope * s.kv_lora * _item(s)  # w_kc and w_vc: what decoding reads instead of kv_b_proj
    yield heads * s.v_dim * s.kv_lora * _item(s)
    yield (heads if s.gate_per_head else heads * s.v_dim) * s.hidden * _item(s)


def _dense(s: Shape, tp: int) -> Iterator[int]:
    yield from _matrix(s, 2 * s.intermediate // tp, s.hidden)
    yield from _matrix(s, s.hidden, s.intermediate // tp)


def _moe(s: Shape, tp: int) -> Iterator[int]:
    yield s.experts * s.hidden * (_FP32 if s.router_dtype == "fp32" else 2)
    yield s.experts * _FP32
    inner, shared = s.moe_intermediate // tp, s.shared_intermediate // tp
    for count, width in ((s.experts, inner), (1, shared)):
        yield from (count * nbytes for nbytes in _matrix(s, 2 * width, s.hidden))
        yield from (count * nbytes for nbytes in _matrix(s, s.hidden, width))


def _matrix(s: Shape, rows: int, columns: int) -> Iterator[int]:
    """Of the checkpoint's kind: bf16, or fp8 with an fp32 scale for each block."""
    if not s.quantization:
        yield rows * columns * _item(s)
        return
    yield rows * columns
    yield -(-rows // _FP8_BLOCK) * -(-columns // _FP8_BLOCK) * _FP32


def _item(s: Shape) -> int:
    return _ITEM[s.dtype]


def _aligned(nbytes: int) -> int:
    return _rounded(nbytes, ALIGNMENT)


def _rounded(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step
