"""The comparison with the reference engine in fp32: it reads in pieces what a whole reading gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.gpu import agreement

from ling_engine.reference import checkpoint, config
from ling_engine.reference.model import Ling
from ling_engine.reference.sequence import Sequence
from ling_engine.reference.tensorfile import shards

if TYPE_CHECKING:
    from pathlib import Path

IDS = [(7 * number + number // 5) % 251 for number in range(40)]
STEP = 2**-6  # of bfloat16 between 2 and 4, where these scores lie


def best(folder: Path) -> list[int | None]:
    """The model's own choice before each token, read at once, in fp32 with a bfloat16 head."""
    c = config.parse({**config.load_keys(folder), "torch_dtype": "float32"})
    with torch.inference_mode():
        model = Ling(c)
        model.to_empty(device="cpu")
        parameters = dict(model.named_parameters())
        for shard in shards(folder):
            raw = shard.path.read_bytes()
            for stored in shard.tensors:
                if stored.name in parameters:
                    values = torch.frombuffer(bytearray(raw[stored.begin : stored.end]), dtype=torch.float32)
                    parameters[stored.name].copy_(values.view(stored.shape))
        step = model(torch.tensor(IDS), Sequence.allocate(c, len(IDS)))
        scores = (step.hidden.bfloat16() @ model.lm_head.weight.bfloat16().T).float()
    return [None, *(int(one) for one in scores.argmax(-1)[:-1])]


def test_an_engine_that_chooses_as_the_reference_agrees_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "_PIECE", 16)
    checkpoint.make_model(tmp_path, dtype="fp32")
    top = best(tmp_path)
    found = agreement.compare(tmp_path, IDS, top)
    assert found["positions"] == len(IDS) - 1
    assert found["share"] > 0.9
    assert all(one["gap"] is not None and one["gap"] <= STEP for one in found["differ"]), (
        "scores that are rounded to the same number or its neighbour"
    )
    assert found["control"]["positions"] == found["positions"]
    assert 0.5 < found["control"]["share"] <= 1, "bf16 loses near calls, and no others"
    wrong = [None if one is None else (one + 1) % 256 for one in top]
    found = agreement.compare(tmp_path, IDS, wrong)
    assert found["share"] < 0.1
    assert all(one["gap"] is None or one["gap"] >= 0 for one in found["differ"])
    assert found["wide_share"] < 0.1 or not found["wide"]
    json.dumps(found)


VALUES = [[3.0, 1.0], [3.0, 2.5], [4.0, 1.0], [2.0, 1.0]]  # of the reference, behind four ids
TOKENS = [[7, 8], [7, 8], [5, 6], [9, 1]]


@pytest.mark.parametrize(
    ("top", "share", "wide", "differ"),
    [
        ([None, 7, 7, 5], (3, 3), (2, 2), []),
        ([None, 7, 8, 5], (3, 2), (2, 2), [{"position": 2, "margin": 0.5, "gap": 0.5}]),
        (
            [None, 8, 8, 5],
            (3, 1),
            (2, 1),
            [{"position": 1, "margin": 2.0, "gap": 2.0}, {"position": 2, "margin": 0.5, "gap": 0.5}],
        ),
        ([None, None, 7, 6], (2, 1), (1, 0), [{"position": 3, "margin": 3.0, "gap": 3.0}]),
        ([None, 7, 7, 1], (3, 2), (2, 1), [{"position": 3, "margin": 3.0, "gap": None}]),
    ],
    ids=["all", "a near call", "a wide call first", "one was not told", "none of the best"],
)
def test_what_is_told_of_another_engines_choices(
    top: list[int | None], share: tuple[int, int], wide: tuple[int, int], differ: list[dict[str, float | None]]
) -> None:
    found = agreement.told_apart(VALUES, TOKENS, top)
    assert (found["positions"], found["equal"]) == share
    assert found["share"] == share[1] / share[0]
    assert (found["wide"], found["wide_equal"]) == wide
    assert found["differ"] == differ
