"""What is accepted; the drafts against a second, independent derivation, over several rounds; their config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.plain import Plain, PlainDspark
from tests.support.speculation import DIALS, DSPARK_KEYS, KEYS, bench, run, tokens

from ling_api.errors import BadInput
from ling_engine.reference import config, dspark_config
from ling_engine.reference.dspark import Dspark
from ling_engine.reference.dspark_model import DsparkModel
from ling_engine.reference.model import Ling
from ling_engine.reference.mtp import Mtp, Nextn
from ling_engine.reference.predictable import fill
from ling_engine.reference.randoms import RandomParameters
from ling_engine.reference.sequence import Sequence
from ling_engine.reference.speculate import accept_prefix

if TYPE_CHECKING:
    from torch import Tensor

    from ling_engine.reference.speculate import Draft

LIMITS = {"expert_swiglu_limit_list": [0.2, None, None], "share_expert_swiglu_limit_list": [0.3, None, None]}
TARGET = {**KEYS, **LIMITS}
GROUPED = {**DSPARK_KEYS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
IDS = [5, 90, 33, 0, 101, 7, 64, 64, 12, 3]
ROUNDS = [(4, 99), (1, 20), (3, 64)]  # rows that the target commits, and the token behind them


class Asked:
    """Chooses the best token and keeps what it was shown."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.positions: list[int] = []

    def __call__(self, scores: Tensor, position: int) -> list[int]:
        self.scores += scores.double()
        self.positions.append(position)
        return [int(row.argmax()) for row in scores]


def rounds(target: Ling, draft: Draft, c: config.Config) -> list[tuple[list[int], int, list[int], Tensor, list[int]]]:
    """(committed ids, anchor, drafts, scores, positions) of each round."""
    sequence, found, ids = Sequence.allocate(c, 64), [], list[int]()
    anchor = IDS[0]
    for rows, following in ROUNDS:
        fresh = [anchor, *IDS[len(ids) + 1 : len(ids) + rows]]
        step = target(torch.tensor([*fresh, 1, 2]), sequence)  # two refused rows behind them
        sequence.commit(step, rows)
        ids, anchor = ids + fresh, following
        draft.extend(step, [*fresh[1:], anchor])
        asked = Asked()
        drafts = draft.propose(asked)
        found.append((ids, anchor, drafts, torch.stack(asked.scores), asked.positions))
    return found


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    ("drafts", "choices", "kept"),
    [
        ([], [5], 0),
        ([1], [2, 9], 0),
        ([1], [1, 9], 1),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 4, 4], 2),
        ([1, 2, 3], [0, 2, 3, 4], 0),
        ([7, 7, 7], [7, 0, 7, 7], 1),
    ],
    ids=str,
)
def test_the_longest_right_prefix_is_accepted(drafts: list[int], choices: list[int], kept: int) -> None:
    assert accept_prefix(drafts, choices) == kept


@pytest.mark.parametrize(("name", "window"), [("nextn", 3), ("dspark", 4)])
def test_a_draft_changes_no_token(name: str, window: int) -> None:
    """At length, and what would break it: tests/integration/test_roll_back.py."""
    made, prompt = bench(DIALS[0.6]), list(b"Hello, world")
    found = run(made, name, window, prompt, limit=16)
    assert tokens(found) == tokens(run(made, "", 0, prompt, limit=16))
    assert any(one.correct not in (None, window) for one in found)  # something was rolled back


@torch.inference_mode()
def test_nextn_scores_equal_an_independent_derivation() -> None:
    c, numbers = config.parse(TARGET), RandomParameters(1)
    target, layer = Ling(c), Mtp(c)
    prefix = f"model.layers.{c.num_hidden_layers}."
    fill(target, numbers)
    fill(layer, numbers, prefix)
    tensors = dict(target.named_parameters()) | {prefix + n: p for n, p in layer.named_parameters()}
    plain = Plain(tensors, c)
    for ids, anchor, drafts, scores, positions in rounds(target, Nextn(target, layer, c, 3, 64), c):
        hidden, following, wanted = list(plain.hidden(ids)), [*ids[1:], anchor], []
        for draft in drafts:
            rows = plain.nextn(following, hidden)
            wanted.append(plain.w["lm_head.weight"] @ rows[-1])
            following, hidden = [*following, draft], [*hidden, rows[-1]]
        assert distance(scores, torch.stack(wanted)) <= 1e-4
        assert positions == [len(ids) + 1, len(ids) + 2, len(ids) + 3]


@torch.inference_mode()
@pytest.mark.parametrize("window", [1, 4])
def test_dspark_scores_equal_an_independent_derivation(window: int) -> None:
    c, numbers = config.parse(TARGET), RandomParameters(2)
    d = dspark_config.parse(GROUPED, c)
    target, model = Ling(c, d.target_layer_ids), DsparkModel(d)
    fill(target, numbers)
    fill(model, numbers)
    plain = PlainDspark(Plain(dict(target.named_parameters()), c), dict(model.named_parameters()), d)
    for ids, anchor, drafts, scores, positions in rounds(target, Dspark(target, model, d, window, 64), c):
        assert distance(scores, plain.scores(ids, anchor, drafts)) <= 1e-4
        assert positions == [len(ids) + 1 + i for i in range(window)]


def test_a_target_without_taps_cannot_feed_dspark() -> None:
    c = config.parse(KEYS)
    target, model = Ling(c), DsparkModel(dspark_config.parse(DSPARK_KEYS, c))
    fill(target, RandomParameters(0))
    step = target(torch.tensor([1]), Sequence.allocate(c, 8))
    with pytest.raises(ValueError, match="without the taps"):
        Dspark(target, model, dspark_config.parse(DSPARK_KEYS, c), 2, 8).extend(step, [1])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other-width": ({"hidden_size": 64}, "hidden_size is 64; the target, whose embedding and head it borrows, has 32"),
    "other-vocabulary": ({"vocab_size": 256}, "vocab_size is 256; the target"),
    "other-dtype": ({"torch_dtype": "bfloat16"}, "dtype is bfloat16; the target"),
    "mask": ({"mask_token_id": 128}, "mask_token_id is 128; the vocabulary has 128 ids"),
    "no-mask": ({"mask_token_id": None}, "mask_token_id is null; write a whole number"),
    "no-markov": ({"markov_rank": 0}, "markov_rank is 0; write a positive number"),
    "gated-markov": ({"markov_head_type": "gated"}, 'markov_head_type is "gated"'),
    "causal": ({"is_causal": True}, "is_causal is true"),
    "anchor": ({"sample_from_anchor": False}, "sample_from_anchor is false"),
    "layer-behind": ({"target_layer_ids": [0, 3]}, "write layers of the target, from 0 to 2"),
    "layer-twice": ({"target_layer_ids": [1, 1]}, "write layers of the target"),
    "no-layers": ({"target_layer_ids": []}, "write layers of the target"),
    "layers-no-list": ({"target_layer_ids": 1}, "target_layer_ids is 1"),
    "groups": ({"num_attention_heads": 3}, "must be a multiple of num_key_value_heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_draft_that_does_not_fit_is_refused_by_name(case: str) -> None:
    keys, sentence = REFUSED[case]
    with pytest.raises(BadInput, match=sentence):
        dspark_config.parse({**DSPARK_KEYS, **keys}, config.parse(KEYS))
