"""SGLang's registry of models in a zygote of ours: ours at once, all others when one of them is asked for."""

from __future__ import annotations

from typing import Any

from tests.support.sglang_lane import told_by

told = told_by("tests.support.sglang_registry")


def test_what_we_serve_is_there_without_importing_the_rest(told: dict[str, Any]) -> None:
    assert {"BailingMoeV3ForCausalLM", "BailingMoeForCausalLMNextN", "LingDSparkModel"} <= set(told["from the start"])
    assert len(told["from the start"]) < 10
    assert told["others imported"] is False


def test_target_and_draft_are_sglangs_own_classes(told: dict[str, Any]) -> None:
    assert told["target"] == "sglang.srt.models.bailing_moe_v3"
    assert told["draft"] == "sglang.srt.models.bailing_moe_nextn"


def test_another_architecture_is_found_when_it_is_asked_for(told: dict[str, Any]) -> None:
    assert told["another"] == "sglang.srt.models.gpt_oss"
