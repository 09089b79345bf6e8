"""The architecture's numbers, read from a checkpoint's config.json with its real keys.

What the engine does not implement is refused with one sentence that names key and value; nothing is half-supported.
Keys that do not change the arithmetic (names of classes, versions of libraries) are left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput
from ling_engine.reference import config_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Numbers under config.json's own names, and what its other keys resolve to."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int
    first_k_dense_replace: int  # that many layers from the bottom have a dense FFN
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    moe_intermediate_size: int
    moe_shared_expert_intermediate_size: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    short_conv_kernel_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    routed_scaling_factor: float
    rope_theta: float
    kda_lower_bound: float
    kda: tuple[bool, ...]  # per layer: KDA, else MLA (from layer_group_size)
    dtype: str  # of every parameter that has no dtype of its own
    router_dtype: str
    gate_per_head: bool  # MLA's output gate: one number a head, else one a channel
    expert_limits: tuple[float | None, ...]  # per layer: clamp of the routed experts, None = none
    shared_limits: tuple[float | None, ...]


def load_keys(folder: Path) -> dict[str, Any]:
    """config.json as it stands. Raises BadInput."""
    path = folder / "config.json"
    try:
        keys = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: no readable model configuration ({error})") from None
    if not isinstance(keys, dict):
        raise BadInput(f"{path}: a JSON object is wanted")
    return keys


def read(folder: Path) -> Config:
    """The config of the checkpoint in `folder`. Raises BadInput with one sentence."""
    keys = load_keys(folder)
    try:
        return parse(keys)
    except BadInput as error:
        raise BadInput(f"{folder / 'config.json'}: {error}") from None


def parse(keys: Mapping[str, Any]) -> Config:
    """The same from parsed JSON."""
    config_keys.check_fixed(keys)
    wanted = [(f.name, f.type == "float") for f in fields(Config) if f.type in ("int", "float")]
    numbers: dict[str, Any] = {name: config_keys.number(keys, name, real=real) for name, real in wanted}
    layers = numbers["num_hidden_layers"]
    config = Config(
        **numbers,
        kda=config_keys.kinds(keys.get("layer_group_size"), layers),
        dtype=config_keys.choice(keys, "dtype" if "dtype" in keys else "torch_dtype", config_keys.DTYPES),
        router_dtype=config_keys.choice(keys, "router_dtype", config_keys.DTYPES),
        gate_per_head=config_keys.choice(keys, "gated_attention_proj_granularity_type", config_keys.GATES),
        expert_limits=config_keys.limits(keys, "expert_swiglu_limit_list", layers),
        shared_limits=config_keys.limits(keys, "share_expert_swiglu_limit_list", layers),
    )
    _check_shapes(config)
    return config


def _check_shapes(c: Config) -> None:
    if c.num_experts % c.n_group or c.num_experts // c.n_group < 2:
        raise BadInput(f"num_experts is {c.num_experts}; n_group {c.n_group} needs groups of 2 or more, all equal")
    if c.topk_group > c.n_group:
        raise BadInput(f"topk_group is {c.topk_group}; there are {c.n_group} groups (n_group)")
    if c.num_experts_per_tok > c.topk_group * (c.num_experts // c.n_group):
        raise BadInput(
            f"num_experts_per_tok is {c.num_experts_per_tok}; topk_group leaves fewer experts to choose from"
        )
    if c.qk_rope_head_dim % 2:
        raise BadInput(f"qk_rope_head_dim is {c.qk_rope_head_dim}; rotary pairs need an even number")
    if c.short_conv_kernel_size < 2:
        raise BadInput(f"short_conv_kernel_size is {c.short_conv_kernel_size}; write 2 or more")
