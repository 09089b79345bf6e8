"""The numbers of a checkpoint that decide how SGLang must be called and how much memory it takes. Pure: keys in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURE = "BailingMoeV3ForCausalLM"
DRAFT_ARCHITECTURE = "LingDSparkModel"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """A DSPARK draft: ordinary attention layers that read `taps` layers of the target."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    taps: int
    block: int  # tokens it proposes a round
    markov_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of the target; sizes in elements."""

    hidden: int
    layers: int
    kda_layers: int
    heads: int
    head_dim: int
    conv: int  # kernel of the short convolution
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    gate_per_head: bool
    vocab: int
    dense_layers: int
    intermediate: int
    experts: int
    experts_per_token: int
    moe_intermediate: int
    shared_intermediate: int
    nextn_layers: int
    max_positions: int
    dtype: str
    router_dtype: str
    quantization: str  # "" or fp8
    draft: DraftShape | None = None

    @property
    def mla_layers(self) -> int:
        """Layers with a key-value cache; the others have a state of fixed size."""
        return self.layers - self.kda_layers


def shape_of(keys: Mapping[str, Any], draft: Mapping[str, Any] | None = None) -> Shape:
    """From the config.json of the target and, if there is one, of its DSPARK draft. Raises BadInput."""
    _expect(keys, ARCHITECTURE)
    layers = _number(keys, "num_hidden_layers")
    group = keys.get("layer_group_size")
    kda = sum(group) if isinstance(group, list) else layers - layers // _number(keys, "layer_group_size")
    return Shape(
        hidden=_number(keys, "hidden_size"),
        layers=layers,
        kda_layers=kda,
        heads=_number(keys, "num_attention_heads"),
        head_dim=_number(keys, "head_dim"),
        conv=_number(keys, "short_conv_kernel_size"),
        kv_lora=_number(keys, "kv_lora_rank"),
        nope=_number(keys, "qk_nope_head_dim"),
        rope=_number(keys, "qk_rope_head_dim"),
        v_dim=_number(keys, "v_head_dim"),
        gate_per_head=keys.get("gated_attention_proj_granularity_type", "head_wise") == "head_wise",
        vocab=_number(keys, "vocab_size"),
        dense_layers=int(keys.get("first_k_dense_replace", 0)),
        intermediate=_number(keys, "intermediate_size"),
        experts=_number(keys, "num_experts"),
        experts_per_token=_number(keys, "num_experts_per_tok"),
        moe_intermediate=_number(keys, "moe_intermediate_size"),
        shared_intermediate=_number(keys, "moe_shared_expert_intermediate_size"),
        nextn_layers=int(keys.get("num_nextn_predict_layers") or 0),
        max_positions=_number(keys, "max_position_embeddings"),
        dtype=str(keys.get("dtype") or keys.get("torch_dtype") or "bfloat16"),
        router_dtype="bf16" if keys.get("router_dtype") in ("bf16", "bfloat16") else "fp32",
        quantization=_quantization(keys),
        draft=None if draft is None else _draft(draft),
    )


def _draft(keys: Mapping[str, Any]) -> DraftShape:
    _expect(keys, DRAFT_ARCHITECTURE)
    return DraftShape(
        layers=_number(keys, "num_hidden_layers"),
        heads=_number(keys, "num_attention_heads"),
        kv_heads=_number(keys, "num_key_value_heads"),
        head_dim=_number(keys, "head_dim"),
        intermediate=_number(keys, "intermediate_size"),
        taps=len(keys.get("target_layer_ids") or ()),
        block=_number(keys, "block_size"),
        markov_rank=_number(keys, "markov_rank"),
    )


def _expect(keys: Mapping[str, Any], architecture: str) -> None:
    found = keys.get("architectures") or ["none"]
    if found[0] != architecture:
        raise BadInput(f"config.json names the architecture {found[0]}; this engine serves {architecture}")


def _quantization(keys: Mapping[str, Any]) -> str:
    quantization = keys.get("quantization_config")
    if not quantization:
        return ""
    method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
    if method != "fp8" or not block:
        raise BadInput(f"quantization_config is {method}: there are recipes for bf16 and block-wise fp8 checkpoints")
    return "fp8"


def _number(keys: Mapping[str, Any], key: str) -> int:
    value = keys.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{key} is {value!r} in config.json; a whole number from 1 is wanted")
    return value
