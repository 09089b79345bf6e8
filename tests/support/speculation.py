"""A very small predictable target with both drafts, and what its runs are held against."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ling_engine.reference.bounds import GREEDY, Bounds, Sampling
from ling_engine.reference.dial import Bench
from ling_engine.reference.presets import PRESETS, dspark_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_engine.reference.speculate import Round

torch.set_num_threads(1)  # tiny products: a second thread only waits

KEYS: dict[str, Any] = {
    **PRESETS["tiny"],
    "torch_dtype": "float32",
    "num_hidden_layers": 3,
    "layer_group_size": 3,
    "first_k_dense_replace": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "vocab_size": 128,
}
DSPARK_KEYS = {
    **dspark_keys(KEYS),
    "num_hidden_layers": 2,
    "target_layer_ids": [0, 2],
    "mask_token_id": 127,
    "markov_rank": 64,
}
CONTEXT = 192
DIALS = {0.9: 0.6, 0.6: 0.95, 0.3: 1.6}  # acceptance, about -> dial


@cache
def bench(dial: float, seed: int = 0) -> Bench:
    """Filled; nobody may write into it."""
    made = Bench(KEYS, DSPARK_KEYS, seed)
    made.fill(dial)
    return made


def corrupt(name: str, zeroed: Callable[[str], bool], dial: float, seed: int = 0) -> Bench:
    """A fresh one, those tensors of the draft `name` zeroed."""
    made = Bench(KEYS, DSPARK_KEYS, seed)
    made.fill(dial)
    for tensor, parameter in (made.mtp if name == "nextn" else made.dspark).named_parameters():
        if zeroed(tensor):
            parameter.data.zero_()
    return made


@torch.inference_mode()
def run(
    made: Bench,
    name: str,
    window: int,
    prompt: list[int],
    *,
    limit: int = 32,
    eos: int | None = None,
    sampling: Sampling = GREEDY,
    context: int = CONTEXT,
) -> list[Round]:
    """The rounds of one answer."""
    decoder = made.decoder(name, context, window)
    return list(decoder.generate(prompt, Bounds(limit=limit, eos=eos, sampling=sampling), lambda: True))


def tokens(rounds: list[Round]) -> list[int]:
    return [token for one in rounds for token in one.tokens]


def accept_length(rounds: list[Round]) -> float:
    verified = [one for one in rounds if one.correct is not None]
    return sum(len(one.tokens) for one in verified) / len(verified)


def acceptance(rounds: list[Round], window: int) -> float:
    """Drafts that were right, among those whose predecessors were."""
    found = [one.correct for one in rounds if one.correct is not None]
    return sum(found) / sum(min(correct + 1, window) for correct in found)
