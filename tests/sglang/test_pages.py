"""FlashAttention's page tables: a request that ends at its full context has its drafts inside them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_pages")


@pytest.mark.parametrize("mode", ["None", "NEXTN", "DSPARK"])
def test_tables_hold_a_request_at_its_full_context(told: dict[str, Any], mode: str) -> None:
    assert told[mode]["hooked True"] >= told[mode]["needed"]


@pytest.mark.parametrize("mode", ["NEXTN", "DSPARK"])
def test_sglangs_own_do_not(told: dict[str, Any], mode: str) -> None:
    """When they do, the hook can go."""
    assert told[mode]["hooked False"] < told[mode]["needed"]


def test_the_hook_is_in_force_once_where_a_gpus_libraries_are(told: dict[str, Any]) -> None:
    assert (told["with them"], told["again"], told["hooks"]) == ("nothing raised", "nothing raised", 1)


def test_without_a_gpus_libraries_nothing_is_hooked(told: dict[str, Any]) -> None:
    assert told["without a GPU's libraries"] == "nothing raised"
    assert told["left alone there"] is True


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
