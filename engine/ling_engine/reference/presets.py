"""The checkpoints that `make-model` can write: config.json keys by preset, all of the real architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

BOS: Final = 256
EOS: Final = 257
MASK: Final = 258

_ALWAYS: dict[str, Any] = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "hidden_act": "silu",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "first_k_dense_replace": 2,
    "gated_attention_proj_granularity_type": "head_wise",
    "kda_lower_bound": -5,
    "kda_safe_gate": True,
    "layer_group_size": 6,
    "max_position_embeddings": 32768,
    "moe_router_enable_expert_bias": True,
    "no_kda_lora": True,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "rms_norm_eps": 1e-6,
    "rope_interleave": True,
    "rope_scaling": None,
    "rope_theta": 6000000,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "scoring_func": "sigmoid",
    "short_conv_kernel_size": 4,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "use_qkv_bias": False,
}


def _shape(layers: int, hidden: int, heads: int, width: int, experts: int, inner: int, **others: int) -> dict[str, Any]:
    return {
        **_ALWAYS,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width,
        "v_head_dim": width,
        "qk_nope_head_dim": width,
        "qk_rope_head_dim": width // 2,
        "qk_head_dim": width + width // 2,
        "kv_lora_rank": 4 * width,
        "intermediate_size": 3 * hidden,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": inner,
        "moe_shared_expert_intermediate_size": inner,
        "vocab_size": 264,
        **others,
    }


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "tiny": _shape(6, 64, 4, 16, experts=6, inner=32, n_group=3, first_k_dense_replace=4),
    # a head as wide as the real ones: kernels for GPUs are written for those widths and no others
    "mini": _shape(6, 256, 2, 128, experts=8, inner=128),
    "small": _shape(12, 256, 8, 32, experts=16, inner=128, num_experts_per_tok=4),
    "1g": _shape(12, 1536, 12, 128, experts=12, inner=512, num_experts_per_tok=4, vocab_size=4096),
    "2g": _shape(12, 2048, 16, 128, experts=12, inner=896, num_experts_per_tok=4, vocab_size=4096),
    "4g": _shape(12, 2560, 20, 128, experts=12, inner=1664, num_experts_per_tok=4, vocab_size=4096),
}


def dspark_keys(target: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a DSPARK draft for a target with these keys."""
    borrowed = ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    layers = target["num_hidden_layers"]
    return {
        "architectures": ["LingDSparkModel"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "num_hidden_layers": 5,
        "block_size": 8,
        "target_layer_ids": sorted({(i + 1) * layers // 6 for i in range(5)}),
        "mask_token_id": MASK,
        "markov_head_type": "vanilla",
        "markov_rank": 256,
        "sample_from_anchor": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "intermediate_size": target["intermediate_size"],
        "torch_dtype": target["torch_dtype"],
        **{name: target[name] for name in borrowed},
    }


DTYPE: Final = {"tiny": "float32", "mini": "float32", "small": "float32"}  # the others: bfloat16
