"""Tuned tables of the MoE kernel: timed with SGLang's kernel (interpreted), and read by SGLang as they are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sglang_lane import Lane


@pytest.fixture(scope="module")
def told(lane: Lane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("moe")
    result = folder / "told.json"
    lane.run("tests.support.sglang_moe", str(folder / "tables"), str(model), str(result))
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def test_tables_have_the_names_under_which_sglang_looks(told: dict[str, Any]) -> None:
    assert len(told["names"]) == 3
    for ours, sglangs in told["names"]:
        assert ours == sglangs


def test_sglang_reads_what_was_written(told: dict[str, Any]) -> None:
    assert told["written"].keys() > {"1", "4"}
    assert {rows: told["read"][rows] for rows in ("1", "4", "64")} == {
        rows: told["written"][rows] for rows in ("1", "4", "64")
    }
    assert told["read"]["64"] == told["default"], "a prompt's rows keep SGLang's default"


def test_the_default_and_every_configuration_ran_in_the_real_kernel(told: dict[str, Any]) -> None:
    assert {rows: len(found) for rows, found in told["timed"].items()} == {"1": 3, "4": 3}
    assert all(0 < took < 1e9 for found in told["timed"].values() for took in found.values())
