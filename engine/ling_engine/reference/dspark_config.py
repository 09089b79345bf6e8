"""The numbers of a DSPARK draft, read from its config.json and held against the target that it was made for."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ling_api.errors import BadInput
from ling_engine.reference import config_keys
from ling_engine.reference.config import load_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ling_engine.reference.config import Config

_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "markov_head_type": (("vanilla", None), "only the vanilla Markov head is implemented"),
    "sample_from_anchor": ((True, None), "only drafts whose first row predicts the first token are implemented"),
    "is_causal": ((False, None), "only blocks that see themselves both ways are implemented"),
    "attention_bias": ((False, None), "biases are not implemented"),
    "hidden_act": (("silu", None), "only silu is implemented"),
    "rope_scaling": ((None,), "scaled rotary positions are not implemented"),
    "use_sliding_window": ((False, None), "sliding windows are not implemented"),
    "quantization_config": ((None,), "quantised checkpoints are not implemented"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DsparkConfig:
    """Numbers under config.json's own names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int  # tokens that it was made to propose at once
    markov_rank: int
    mask_token_id: int  # what stands in the block for a token that is not known yet
    rms_norm_eps: float
    rope_theta: float
    target_layer_ids: tuple[int, ...]  # whose outputs it reads
    dtype: str


def read(folder: Path, target: Config) -> DsparkConfig:
    """The config of the draft in `folder`. Raises BadInput with one sentence."""
    keys = load_keys(folder)
    try:
        return parse(keys, target)
    except BadInput as error:
        raise BadInput(f"{folder / 'config.json'}: {error}") from None


def parse(keys: Mapping[str, Any], target: Config) -> DsparkConfig:
    """The same from parsed JSON."""
    config_keys.check_fixed(keys, _FIXED)
    wanted = [(f.name, f.type == "float") for f in fields(DsparkConfig) if f.type in ("int", "float")]
    numbers: dict[str, Any] = {name: config_keys.number(keys, name, real=real) for name, real in wanted}
    c = DsparkConfig(
        **numbers,
        target_layer_ids=_layers(keys.get("target_layer_ids"), target.num_hidden_layers),
        dtype=config_keys.choice(keys, "dtype" if "dtype" in keys else "torch_dtype", config_keys.DTYPES),
    )
    for name in ("hidden_size", "vocab_size", "dtype"):
        ours, theirs = getattr(c, name), getattr(target, name)
        if ours != theirs:
            raise BadInput(f"{name} is {ours}; the target, whose embedding and head it borrows, has {theirs}")
    if c.mask_token_id >= c.vocab_size:
        raise BadInput(f"mask_token_id is {c.mask_token_id}; the vocabulary has {c.vocab_size} ids")
    if c.num_attention_heads % c.num_key_value_heads or c.head_dim % 2:
        raise BadInput("num_attention_heads must be a multiple of num_key_value_heads, head_dim an even number")
    return c


def _layers(value: object, layers: int) -> tuple[int, ...]:
    known = isinstance(value, list) and value and all(type(v) is int and 0 <= v < layers for v in value)
    if not known or not isinstance(value, list) or len(set(value)) < len(value):
        raise BadInput(f"target_layer_ids is {json.dumps(value)}; write layers of the target, from 0 to {layers - 1}")
    return tuple(value)
