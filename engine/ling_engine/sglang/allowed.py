"""Which settings of SGLang go with weights that engines share, and which belong to the identity of those weights.

SGLang resolves some 550 settings. Each that differs from its default must be known here: harmless (FREE), deciding what
lies in memory (IDENTITY), or refused with a reason (REFUSED). Anything else is refused where the weights must come from
the slot, and becomes part of the identity otherwise, so that two engines that differ in it never share a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput
from ling_engine.runtime import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# names of where things lie, sizes of caches, HTTP, logs, scheduling, decoding: read after the weights are in place
FREE: Final = _words(
    """
    model_path tokenizer_path tokenizer_mode skip_tokenizer_init trust_remote_code served_model_name host port
    nccl_port dist_init_addr dist_timeout
    context_length mem_fraction_static max_running_requests max_queued_requests max_total_tokens chunked_prefill_size
    max_prefill_tokens prefill_decode_interval page_size disable_radix_cache load_balance_method max_mamba_cache_size
    disable_chunked_prefix_cache
    schedule_policy schedule_conservativeness disable_overlap_schedule num_continuous_decode_steps
    kv_cache_dtype cuda_graph_config cuda_graph_max_bs_decode cuda_graph_bs_decode cuda_graph_max_bs_prefill
    cuda_graph_bs_prefill disable_prefill_cuda_graph disable_cuda_graph_padding enable_cudagraph_gc
    cuda_graph_backend_decode cuda_graph_backend_prefill
    dcp_comm_backend enable_tp_lm_head_all_to_all grpc_worker_threads skip_server_warmup random_seed
    sampling_backend grammar_backend sampling_defaults reasoning_parser tool_call_parser chat_template stream_interval
    log_level log_level_http log_requests log_requests_level decode_log_interval enable_metrics watchdog_timeout
    sleep_on_idle file_storage_path hicache_ratio mm_process_config mm_feature_transport encoder_transfer_backend
    scheduler_recv_interval
    expert_distribution_recorder_buffer_size mamba_ssm_dtype linear_replayssm_cache_len enable_linear_replayssm_spec
    uses_mamba_radix_cache mamba_radix_cache_strategy boundary_reduction speculative_boundary_reduction
    disable_custom_all_reduce flashinfer_allreduce_fusion_backend enable_flashinfer_allreduce_fusion load_format
    model_loader_extra_config custom_weight_loader base_gpu_id gpu_id_step enable_deterministic_inference
    linear_attn_backend linear_attn_decode_backend linear_attn_prefill_backend linear_attn_verify_backend
    """
)
# of every set: what its classes, its loader and their post-processing read
IDENTITY: Final = (
    "dtype", "quantization", "device", "tp_size", "ep_size", "json_model_override_args", "attention_backend",
    "decode_attention_backend", "prefill_attention_backend", "moe_runner_backend", "moe_a2a_backend",
    "fp8_gemm_runner_backend", "bf16_gemm_backend", "disable_shared_experts_fusion", "enforce_shared_experts_fusion",
)  # fmt: skip
# of a draft's set only: the target's bytes are the same however its engine decodes
DRAFT_IDENTITY: Final = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_dspark_block_size", "speculative_draft_model_path", "speculative_draft_model_revision",
    "speculative_draft_model_quantization", "speculative_moe_runner_backend", "speculative_moe_a2a_backend",
    "speculative_draft_attention_backend", "speculative_attention_mode",
)  # fmt: skip
_NO_WRITES = "it writes or moves weights, which all engines of a slot share"
_ONE_RANK_KIND = "weights are kept for tensor-parallel ranks only"
REFUSED: Final = {
    "enable_memory_saver": _NO_WRITES,
    "enable_weights_cpu_backup": _NO_WRITES,
    "enable_draft_weights_cpu_backup": _NO_WRITES,
    "cpu_offload_gb": _NO_WRITES,
    "offload_group_size": _NO_WRITES,
    "enable_eplb": _NO_WRITES,
    "ep_num_redundant_experts": _NO_WRITES,
    "enable_lora": _NO_WRITES,
    "lora_paths": _NO_WRITES,
    "enable_fp32_lm_head": "it makes a second, private head of every engine",
    "speculative_token_map": "it makes a private head of the draft",
    "weight_cache_mode": "SGLang's own weight cache would keep a second copy",
    "torchao_config": "it rewrites weights after loading",
    "pp_size": _ONE_RANK_KIND,
    "dp_size": _ONE_RANK_KIND,
    "enable_dp_attention": _ONE_RANK_KIND,
    "nnodes": "a slot's ranks are in one pod",
}

# variables of SGLang that are harmless; names that begin so are, too
FREE_VARIABLES: Final = _words(
    """
    SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION SGLANG_OPT_FUSED_KDA_VERIFY
    SGLANG_ENABLE_METADATA_GLUE_GRAPH SGLANG_DSPARK_NVLINK_VOCAB_GATHER SGLANG_MAMBA_CONV_DTYPE SGLANG_MAMBA_SSM_DTYPE
    SGLANG_CACHE_DIR SGLANG_JIT_CACHE_DIR SGLANG_MOE_CONFIG_DIR SGLANG_PLUGINS SGLANG_PLATFORM
    SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR SGLANG_SIMULATE_ACC_LEN
    SGLANG_SIMULATE_ACC_METHOD SGLANG_FORCE_STREAM_INTERVAL SGLANG_OPT_CUDA_GRAPH_FILL_FAST_PATH
    SGLANG_OPT_DSV41_DSPARK_MID_FOLD SGLANG_OPT_DSV41_DSPARK_PREPARE_INPUTS_ONCE
    SGLANG_OPT_DSV41_DSPARK_SKIP_PREFILLED_INPUTS SGLANG_DSPARK_FUSED_ACCEPT_TAIL SGLANG_OPT_DSV41_DSPARK_POST_FOLD
    SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH SGLANG_ENABLE_TORCH_INFERENCE_MODE
    SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_NONE
    """
)
_FREE_PREFIXES: Final = ("SGLANG_LOG", "SGLANG_HEALTH_CHECK")
DRAFT_VARIABLES: Final = ("SGLANG_RAGGED_VERIFY_MODE",)  # static: the draft has no confidence head
REFUSED_VARIABLES: Final = {
    "SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED": "it permutes the experts' rows in place and remembers that outside of them",
    "SGLANG_OPT_BEAM_DECODE_GEMV": "it needs SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What belongs to the identity of every set, and of drafts besides, by name; values as text or numbers."""

    common: dict[str, Any]
    draft: dict[str, Any]


def judge(
    resolved: Mapping[str, Any], defaults: Mapping[str, Any], variables: Mapping[str, str], policy: str
) -> Verdict:
    """Of resolved settings and of the environment's SGLANG_* variables. Raises BadInput for what is refused."""
    changed = {name: value for name, value in resolved.items() if value != defaults.get(name)}
    for name, why in REFUSED.items():
        if name in changed:
            raise BadInput(f"SGLang's {name} is {changed[name]!r}: {why}; leave it out or set --weight-cache Off")
    for name, why in REFUSED_VARIABLES.items():
        if variables.get(name, "0").lower() not in ("", "0", "false"):
            raise BadInput(f"{name}={variables[name]}: {why}; leave it out or set --weight-cache Off")
    known = FREE.union(IDENTITY, DRAFT_IDENTITY)
    unknown: dict[str, Any] = {n: str(v) for n, v in changed.items() if n not in known and not n.startswith("_")}
    unknown |= {name: value for name, value in variables.items() if _unknown(name)}
    if unknown and policy == REQUIRED:
        named = ", ".join(f"{name}={value}" for name, value in sorted(unknown.items()))
        raise BadInput(
            f"{named}: not known to leave the weights as they are; leave it out or set --weight-cache Preferred"
        )
    return Verdict(
        common={name: resolved.get(name) for name in IDENTITY} | {"other": dict(sorted(unknown.items()))},
        draft={name: resolved.get(name) for name in DRAFT_IDENTITY if name != "speculative_draft_model_path"}
        | {name: variables.get(name) for name in DRAFT_VARIABLES},
    )


def _unknown(name: str) -> bool:
    if not name.startswith("SGLANG_") or name.startswith(_FREE_PREFIXES):
        return False
    return name not in FREE_VARIABLES and name not in DRAFT_VARIABLES and name not in REFUSED_VARIABLES
