"""Decoding's layers for few rows: hooks that put kernels of ours, or other sizes, in the place of SGLang's.

SGLang computes a layer of experts in eight to thirteen kernels: scores, choice, columns of the shared expert, sorting,
two products, activation, sum. With the first three parts it is four. Which experts are taken does not change, nor what
is rounded; sums are made in another order.
What is not exactly what our kernels are for, a prompt's rows for one, goes SGLang's way.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final

import torch

from ling_engine.kernels import plans

from . import hook_variables, hooking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ling_engine.kernels.experts import Experts
    from ling_engine.kernels.products import Matrix

_log = logging.getLogger(__name__)
_OF_CHOICE: Final = ("layer_id", "num_token_non_padded")
_COLUMNS: Final = 8
_QUANTIZED: Final = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "fuse_swiglu_interleaved")
_MORE: Final = ("b1", "b2", "a1_q", "w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape")


def ensure(*_: object, **__: object) -> None:
    """Puts the wanted parts in place in this rank. Raises PluginMissing where SGLang is another one, and BadInput."""
    parts = hook_variables.few_rows(os.environ)
    for part in parts:
        hooking.place(hooking.AROUND, hook_variables.TARGETS[part], _HOOKS[part])
    if parts:
        _log.info("few_rows=%s", ",".join(parts))


def few(x: Any, least: int = 1) -> bool:
    """Whether the rows of `x` [rows, hidden] are those of a step, in a type and a place that our kernels take."""
    ours = x.is_cuda and x.dtype == torch.bfloat16
    return least <= x.shape[0] <= plans.ROWS and x.is_contiguous() and (ours or _interpreted())


def scored(original: Callable[..., Any], gate: Any, hidden_states: Any) -> Any:
    """In the place of BailingMoEGate.forward, for rows for which that goes to a library of large products."""
    weight, gates = gate.weight, importlib.import_module(type(gate).__module__)
    plan = plans.scores(weight.shape[1], weight.shape[0])
    known = weight.is_contiguous() and weight.dtype in (torch.float32, hidden_states.dtype)
    if plan is None or not (known and few(hidden_states, least=gates.ROUTER_GATE_MATVEC_MAX_M + 1)):
        return original(gate, hidden_states)
    from ling_engine.kernels import router

    return router.scores(hidden_states, weight.data, plan=plan, pdl=pdl())


def chosen(original: Callable[..., Any], hidden_states: Any, router_logits: Any, topk_config: Any, **more: Any) -> Any:
    """In the place of select_experts, with the shared expert's column and without padded rows in the same kernel."""
    topk: Any = importlib.import_module("sglang.srt.layers.moe.topk")
    padded, layer = more.get("num_token_non_padded"), more.get("layer_id")
    others = [value for name, value in more.items() if name not in _OF_CHOICE and value is not None]
    choice = None if others or not few(hidden_states) else _choice(topk, topk_config)
    if choice is None or not (choice.fits(router_logits.shape[1]) and _fp32(router_logits, topk_config)):
        return original(hidden_states, router_logits, topk_config, **more)
    from ling_engine.kernels import router

    weights, ids = router.choose(router_logits, topk_config.correction_bias, choice, padded, pdl=pdl())
    topk.capture_routed_experts_if_allowed(topk_config, layer, ids)
    topk.get_global_expert_distribution_recorder().on_select_experts(topk_ids=ids[:, : choice.chosen])
    return topk.StandardTopKOutput(weights, ids, router_logits)


def _fp32(logits: Any, config: Any) -> bool:
    both = (logits, config.correction_bias)
    return all(one.dtype == torch.float32 and one.is_contiguous() for one in both)


def _choice(topk: Any, config: Any) -> plans.Choice | None:
    """None unless it is the choice by groups, scores and a bias, all of whose columns one kernel can write."""
    shared = config.num_shared_topk_slots
    ours = (
        config.use_grouped_topk
        and config.scoring_func == "sigmoid"
        and config.correction_bias is not None
        and config.correction_bias.ndim == 1
        and config.custom_routing_function is None
        and not config.torch_native
        and config.fused_shared_experts_scaling_factor is None
        and not (shared and topk.has_per_rank_fused_shared_slots(shared))
        and not topk.routing_simulation_enabled()
    )
    if not ours:
        return None
    return plans.Choice(
        chosen=config.top_k - shared,
        slots=config.top_k,
        groups=config.num_expert_group,
        of_groups=config.topk_group,
        scale=config.routed_scaling_factor or 1.0,
        renormalize=config.renormalize,
        scaled=config.apply_routed_scaling_factor_on_output,
    )


_layers: dict[tuple[int, torch.Size, float | None], Experts] = {}  # by their first weight, for as long as the process


def summed(
    original: Callable[..., Any], hidden_states: Any, w1: Any, w2: Any, topk_output: Any, moe_runner_config: Any,
    **more: Any,
) -> Any:  # fmt: skip
    """In the place of fused_experts."""
    weights, ids, _ = topk_output
    config = moe_runner_config
    cuts = plans.experts(w2.shape[1], w2.shape[2], hidden_states.shape[0])
    layer = None
    if cuts is not None and few(hidden_states) and _plain(hidden_states, w1, w2, topk_output, config, more):
        layer = _layer(w1, w2, config.gemm1_clamp_limit)
    if cuts is None or layer is None:
        return original(hidden_states, w1, w2, topk_output, config, **more)
    out = hidden_states if config.inplace else _room(hidden_states)
    return layer(hidden_states, weights, ids, out, scale=config.routed_scaling_factor or 1.0, plans=cuts, pdl=pdl())


def _plain(x: Any, w1: Any, w2: Any, chosen: Any, config: Any, more: Mapping[str, Any]) -> bool:
    """Whether it is two products with silu(gate) * up between them, of whole experts, in the type of the rows."""
    weights, ids, _ = chosen
    return (
        x.dtype == w1.dtype == w2.dtype
        and w1.is_contiguous()
        and w2.is_contiguous()
        and weights.dtype == torch.float32
        and weights.is_contiguous()
        and weights.shape == ids.shape
        and ids.dtype == torch.int32
        and ids.is_contiguous()
        and ids.shape[1] <= plans.SLOTS
        and config.activation == "silu"
        and config.is_gated
        and config.gemm1_alpha is None
        and config.swiglu_limit is None
        and not config.apply_router_weight_on_input
        and not config.no_combine
        and config.num_experts == config.num_local_experts
        and not any(more.get(name) for name in _QUANTIZED)
        and all(more.get(name) is None for name in _MORE)
        and not _summed_by_all()
    )


def _summed_by_all() -> bool:
    """Whether the kernel itself sums over ranks."""
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    return bool(context.get_exec().moe.enable_fused_moe_sum_all_reduce)


def _room(x: Any) -> Any:
    """Where a layer's result goes: memory that ranks share, where SGLang has its results there."""
    fused: Any = importlib.import_module("sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe")
    group = fused.get_parallel().tp_group
    with fused.use_symmetric_memory(group, disabled=not fused.is_allocation_symmetric()):
        return torch.empty_like(x)


def _layer(w1: Any, w2: Any, limit: float | None) -> Experts | None:
    def made() -> Experts:
        from ling_engine.kernels.experts import Experts

        return Experts(w1, w2, limit=limit)

    return _once(_layers, (w1.data_ptr(), w1.shape, limit), w1, made)


_matrices: dict[tuple[int, torch.Size], Matrix] = {}


def multiplied(original: Callable[..., Any], method: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    """In the place of UnquantizedLinearMethod.apply, for the rows of a round of drafts: of one row SGLang has kernels
    of its own."""
    weight = layer.weight
    plan = matrix = None
    known = bias is None and x.ndim == 2 and weight.dtype == x.dtype and weight.is_contiguous()
    if known and few(x, least=2) and not torch.compiler.is_compiling():
        plan = plans.product(weight.shape[1], weight.shape[0])
    if plan is not None:
        matrix = _matrix(weight.data)
    if plan is None or matrix is None:
        return original(method, layer, x, bias)
    return matrix.product(x, plan=plan, pdl=pdl())


def _matrix(weight: Any) -> Matrix | None:
    def made() -> Matrix:
        from ling_engine.kernels.products import Matrix

        return Matrix(weight)

    return _once(_matrices, (weight.data_ptr(), weight.shape), weight, made)


def _once[Key, Made](held: dict[Key, Made], key: Key, weight: Any, made: Callable[[], Made]) -> Made | None:
    """None while a graph is captured that would have counters made anew in every replay."""
    found = held.get(key)
    if found is None and not (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        found = held[key] = made()
    return found


def pdl() -> bool:
    """Whether kernels may be launched before the one in front has ended."""
    utils: Any = importlib.import_module("sglang.kernels.jit.utils")
    return not _interpreted() and utils.is_arch_support_pdl()


def _interpreted() -> bool:
    """For tests: Triton's interpreter runs the same kernels without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def narrow(original: Callable[..., tuple[int, int]], n: int, h: int, hv: int, k: int, v: int, *more: Any,
           **named: Any) -> tuple[int, int]:  # fmt: skip
    """In the place of _select_recurrent_launch_config: columns of a state of KDA for a program, and warps. Of one
    request SGLang gives a GPU 4 programs a head; columns do not depend on each other, so that more of fewer compute
    the same."""
    usual = original(n, h, hv, k, v, *more, **named)
    is_kda = named.get("is_kda", more[0] if more else False)
    return (_COLUMNS, 1) if n == 1 and is_kda and usual == (32, 1) and v % _COLUMNS == 0 else usual


def verified(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """In the place of fused_kda_conv_gating_verify: SGLang's columns of a program are those of a B200, with more
    processors. Columns do not depend on each other, and each is summed as before."""
    module: Any = importlib.import_module(hook_variables.VERIFY)
    module.KDA_VERIFY_BLOCK_V = plans.VERIFIED_COLUMNS
    return original(*args, **named)


def replayed(original: Callable[..., None], *args: Any, **named: Any) -> None:
    """In the place of commit_kda_replayssm_spec_all_layers, as `verified`."""
    module: Any = importlib.import_module(hook_variables.REPLAY)
    if not isinstance(module.kda_replayssm_exact_fold_kernel, _Narrow):
        module.kda_replayssm_exact_fold_kernel = _Narrow(module.kda_replayssm_exact_fold_kernel)
    original(*args, **named)


class _Narrow:
    """A kernel that is launched with fewer columns for a program, `BV`, and more programs."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launched(*args: Any, **named: Any) -> Any:
            columns = min(named["BV"], plans.REPLAYED_COLUMNS)
            more = named["BV"] // columns
            return self._kernel[(grid[0] * more, *grid[1:])](*args, **named | {"BV": columns})

        return launched


def kept(
    original: Callable[..., None], kv: Any, meta: Any, k_norm_weights: Any, cos_sin_cache: Any, positions: Any,
    locs: Any, num_layers: int, kv_size: int, head_dim: int, eps: float, **more: Any,
) -> None:  # fmt: skip
    """In the place of fused_kv_norm_rope_write, for the rows of a step."""
    confirmed, turned = more.get("commit_lens"), more.get("rotary_dim") or head_dim
    whole = (positions, locs) if confirmed is None else (positions, locs, confirmed)
    plain = all(one.is_contiguous() for one in (kv, meta, k_norm_weights, cos_sin_cache, *whole))
    if not (few(kv) and plain and positions.dtype == locs.dtype == torch.int64 and meta.dtype == torch.int64):
        original(kv, meta, k_norm_weights, cos_sin_cache, positions, locs, num_layers, kv_size, head_dim, eps, **more)
        return
    from ling_engine.kernels import context

    context.write(
        kv, meta, k_norm_weights, cos_sin_cache, positions, locs, layers=num_layers, heads=kv_size // head_dim,
        width=head_dim, eps=eps, confirmed=confirmed, rows=more.get("locs_row_width") or 1,
        halves=more.get("is_neox_style", True), turned=turned,
    )  # fmt: skip


_HOOKS: Final[dict[str, Callable[..., Any]]] = {
    "scores": scored, "choice": chosen, "experts": summed, "state": narrow, "verify": verified,
    "products": multiplied, "replay": replayed, "context": kept,
}  # fmt: skip
