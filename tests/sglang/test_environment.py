"""SGLang's variables, parsed when they change: each answers as before, and what changes it is seen at once."""

from __future__ import annotations

from typing import Any

from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_environment")


def test_a_change_is_seen_at_once_however_it_is_made(told: dict[str, Any]) -> None:
    by_override, by_hand = [False] * 3, [False] * 3
    assert told["answers"] == [True, *by_override, True, *by_hand, True, None, True]


def test_a_text_is_parsed_once(told: dict[str, Any]) -> None:
    assert told["parsed"] == ["False", "0"]


def test_every_variable_answers_as_sglangs_own_method(told: dict[str, Any]) -> None:
    assert told["others"] == []
    assert told["quick"] > 0.9, "else it would gain little"


def test_only_where_it_is_wanted(told: dict[str, Any]) -> None:
    assert not told["unasked"]


def test_another_release_of_sglang_is_found(told: dict[str, Any]) -> None:
    assert "could not be hooked" in told["another release"]
