"""Ling-3.0-flash's own config.json keys, whole or cut, and those of its DSPARK draft: shapes without weights."""

from __future__ import annotations

from typing import Any

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}


def target(layers: int = 42, experts: int = 512, **others: Any) -> dict[str, Any]:
    """The public checkpoint's shape with that many layers and experts; `others` are laid over it."""
    limits = [None] * 2 + [7.0] * (layers - 1)
    return {
        "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_hybrid", "hidden_size": 2560,
        "num_hidden_layers": layers, "layer_group_size": 6, "first_k_dense_replace": 2, "intermediate_size": 6144,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "vocab_size": 157184,
        "num_experts": experts, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 768,
        "moe_shared_expert_intermediate_size": 768, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True, "score_function": "sigmoid", "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "moe_router_enable_expert_bias": True, "router_dtype": "fp32", "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_head_dim": 192, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "rope_interleave": True, "rope_theta": 6000000.0, "rope_scaling": None, "max_position_embeddings": 262144,
        "gated_attention_proj_granularity_type": "head_wise", "short_conv_kernel_size": 4, "no_kda_lora": True,
        "use_kda_lora": False, "kda_safe_gate": True, "kda_lower_bound": -5.0, "use_mla_nope": False,
        "linear_silu": True, "use_qk_norm": True, "num_nextn_predict_layers": 1, "mtp_use_kda": False,
        "expert_swiglu_limit_list": limits, "share_expert_swiglu_limit_list": limits, "use_bias": False,
        "use_qkv_bias": False, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "pad_token_id": 156892, "eos_token_id": 156892, "torch_dtype": "bfloat16", **others,
    }  # fmt: skip


def draft(layers: int = 42, **others: Any) -> dict[str, Any]:
    """Of the public DSPARK draft, for a target of that many layers."""
    return {
        "architectures": ["LingDSparkModel"], "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 5,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "intermediate_size": 6144,
        "vocab_size": 157184, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16",
        "block_size": 8, "num_target_layers": layers, "target_layer_ids": [1, 11, 23, 29, 35],
        "mask_token_id": 156895, "markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True,
        "confidence_head_with_markov": True, "sample_from_anchor": True, **others,
    }  # fmt: skip
