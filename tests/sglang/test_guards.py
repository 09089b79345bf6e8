"""The plug-in in the real SGLang: every operation that writes weights is refused, and what fails, fails closed."""

from __future__ import annotations

from typing import Any

from tests.support.sglang_lane import told_by

from ling_engine.sglang import readonly

told = told_by("tests.support.sglang_guards")


def test_sglang_finds_the_plugin_by_its_entry_point_and_all_of_it_is_in_force(told: dict[str, Any]) -> None:
    assert told["insist"] == "nothing raised"


def test_every_operation_that_writes_weights_is_refused(told: dict[str, Any]) -> None:
    assert told["refused"].keys() == set(readonly.paths())
    wrong = {path: said for path, said in told["refused"].items() if "the weights belong to the slot" not in said}
    assert wrong == {}


def test_an_sglang_without_a_seat_is_left_alone(told: dict[str, Any]) -> None:
    assert "belong to the slot" not in told["by itself"]


def test_no_writer_of_those_classes_was_forgotten(told: dict[str, Any]) -> None:
    assert told["unnamed writers"] == []


def test_a_guard_that_sglang_could_not_apply_is_found(told: dict[str, Any]) -> None:
    assert "could not be guarded" in told["unguarded"]
    assert "could not be guarded" in told["loader of an unguarded one"]


def test_without_plugin_or_server_no_weights_are_loaded(told: dict[str, Any]) -> None:
    assert "runs without the plug-in" in told["no loader"]
    assert "private_model_loader" in told["sglang without our loader"]
    assert "ling-engine run" in told["no seat"]
