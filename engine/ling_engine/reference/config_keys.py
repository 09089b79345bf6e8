"""How single keys of config.json are read: what is known, what is refused, and with which sentence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

# key -> the values that mean what is implemented (None stands for an absent key too), and why others are refused
FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_mla_nope": ((False, None), "MLA without rotary positions is not implemented"),
    "q_lora_rank": ((None,), "low-rank MLA queries are not implemented"),
    "multi_gate": ((False, None), "several gates per layer are not implemented"),
    "use_kda_lora": ((False, None), "low-rank KDA gates are not implemented"),
    "no_kda_lora": ((True, None), "low-rank KDA gates are not implemented"),
    "kda_safe_gate": ((True, None), "only the bounded decay of KDA is implemented"),
    "rope_scaling": ((None,), "scaled rotary positions are not implemented"),
    "rope_interleave": ((True, None), "only interleaved rotary pairs are implemented"),
    "tie_word_embeddings": ((False, None), "tied embeddings are not implemented"),
    "quantization_config": ((None,), "quantised checkpoints are not implemented"),
    "norm_topk_prob": ((True, None), "only normalised expert weights are implemented"),
    "moe_router_enable_expert_bias": ((True, None), "only a router with an expert bias is implemented"),
    "scoring_func": (("sigmoid", None), "only a sigmoid router is implemented"),
    "score_function": (("sigmoid", None), "only a sigmoid router is implemented"),
    "topk_method": (("noaux_tc", None), "only noaux_tc is implemented"),
    "num_shared_experts": ((1, None), "exactly one shared expert is implemented"),
    "hidden_act": (("silu", None), "only silu is implemented"),
    "use_bias": ((False, None), "biases are not implemented"),
    "use_qkv_bias": ((False, None), "biases are not implemented"),
}
# spellings -> what they mean; an absent key is None
DTYPES = {None: "float32", "float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}
GATES = {None: True, "head_wise": True, "element_wise": False}


def check_fixed(keys: Mapping[str, Any], fixed: Mapping[str, tuple[tuple[Any, ...], str]] = FIXED) -> None:
    """Raises BadInput for the first key whose value asks for something that is not implemented."""
    for key, (known, why) in fixed.items():
        value = keys.get(key)
        if not any(value == k and type(value) is type(k) for k in known):
            raise BadInput(f"{key} is {json.dumps(value)}: {why}")


def number(keys: Mapping[str, Any], key: str, *, real: bool) -> int | float:
    """A positive number (`kda_lower_bound`: -5 to 0; `first_k_dense_replace` may be 0)."""
    value = keys.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float) if real else int):
        wanted = "a number" if real else "a whole number"
        raise BadInput(f"{key} is {json.dumps(value) if key in keys else 'missing'}; write {wanted}")
    if key == "kda_lower_bound":
        if not -5 <= value < 0:  # a chunk of 16 steps then stays within e^80, which fp32 holds
            raise BadInput(f"kda_lower_bound is {value}; write a number from -5 up to, but not including, 0")
    elif value < 0 or (value == 0 and key != "first_k_dense_replace"):
        raise BadInput(f"{key} is {value}; write a positive number")
    return float(value) if real else value


def choice[T](keys: Mapping[str, Any], key: str, known: Mapping[str | None, T]) -> T:
    """One of a few spellings."""
    value = keys.get(key)
    if value is not None and (not isinstance(value, str) or value not in known):
        spelled = ", ".join(k for k in known if k is not None)
        raise BadInput(f"{key} is {json.dumps(value)}; write one of {spelled}")
    return known[value]


def kinds(value: object, layers: int) -> tuple[bool, ...]:
    """Which layers are KDA: a group size (its last layer is MLA), or a list with 1 for KDA and 0 for MLA."""
    if isinstance(value, list):
        if len(value) != layers or any(v not in (0, 1) for v in value):
            raise BadInput(f"layer_group_size is a list; it needs {layers} entries, 1 for KDA and 0 for MLA")
        return tuple(v == 1 for v in value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or layers % value:
        raise BadInput(f"layer_group_size is {json.dumps(value)}; write a divisor of num_hidden_layers ({layers})")
    return tuple((layer + 1) % value != 0 for layer in range(layers))


def limits(keys: Mapping[str, Any], key: str, layers: int) -> tuple[float | None, ...]:
    """A clamp for each layer; null and 0 mean none."""
    value = keys.get(key)
    if value is None:
        return (None,) * layers
    if not isinstance(value, list) or len(value) < layers:
        raise BadInput(f"{key} needs an entry for each of {layers} layers")
    if any(v is not None and (isinstance(v, bool) or not isinstance(v, int | float) or v < 0) for v in value):
        raise BadInput(f"{key} holds something that is neither null nor a number from 0")
    return tuple(float(v) if v else None for v in value[:layers])
