"""The reference engine computes what SGLang computes: layer by layer, drafts included, and as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sglang_table import Row, text

if TYPE_CHECKING:
    from tests.support.sglang_lane import Lane

TABLE = Path(__file__).parents[2] / "build" / "parity.md"
CLOSE = 3e-5  # of the largest value: float32 keeps 6e-8 of each number, thousands are added up, small ones normed
ROUNDED = 2e-3  # where SGLang's kernel rounds to bfloat16 on its way
PARTS = {
    "embedding", "norm", "KDA", "MLA", "MoE", "dense", "MTP layer", "MTP layer, MLA", "MTP layer, MoE", "DSPARK",
    "whole model", "speculation",
}  # fmt: skip


@pytest.fixture(scope="session")
def compared(lane: Lane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Seed 1; the table is left in build/parity.md."""
    result = tmp_path_factory.mktemp("parity") / "result.json"
    lane.run("tests.support.sglang_parity", str(model), "1", str(result), seconds=400)
    found: dict[str, Any] = json.loads(result.read_text())
    rows = [Row(**row) for row in found["rows"]]
    order = list(dict.fromkeys(row.part for row in rows))
    found["rows"] = sorted(rows, key=lambda row: order.index(row.part))
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(text(found["rows"]) + "\n")
    return found


def test_every_layer_agrees(compared: dict[str, Any]) -> None:
    apart = [row for row in compared["rows"] if row.relative > (ROUNDED if "as it is" in row.what else CLOSE)]
    assert not apart, "\n" + text(apart)


def test_every_kind_of_layer_was_compared_in_every_form(compared: dict[str, Any]) -> None:
    assert {row.part for row in compared["rows"]} == PARTS
    seen = {(row.part, row.what) for row in compared["rows"] if row.size > 0}
    assert {
        ("KDA", "convolution, gates, delta rule: chunked (prefill)"),
        ("KDA", "convolution, gates, delta rule: recurrent (decode)"),
        ("KDA", "memory behind each verified row"),
        ("MLA", "layer: our plain, SGLang's plain"),
        ("MLA", "layer: our absorbed, SGLang's absorbed"),
        ("MTP layer", "all of it, behind a prefill"),
        ("MTP layer", "all of it, a step of the chain"),
        ("DSPARK", "layer"),
    } <= seen


def test_ids_and_log_probabilities_of_the_whole_model_are_equal(compared: dict[str, Any]) -> None:
    """Our engine with its own states against SGLang's server code: prefill, then decode."""
    assert compared["ids"] == compared["sglang_ids"]
    assert len(set(compared["ids"])) > 2, "an engine that repeats itself shows little"
    assert compared["logprobs"] == pytest.approx(compared["sglang_logprobs"], abs=1e-6)
    assert compared["fp32_logprobs"] == pytest.approx(compared["sglang_logprobs"], abs=5e-2), (
        "the head rounds to bfloat16"
    )
