"""Stamps of endpoint and cluster: enough to compare by, no secrets."""

from __future__ import annotations

from typing import Any

import pytest

from ling_bench import told


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("python -m sglang.launch_server --tp 2", "python -m sglang.launch_server --tp 2"),
        ("sglang --api-key s3cret --tp 2", "sglang --api-key *** --tp 2"),
        ("sglang --admin-api-key=s3cret --tp 2", "sglang --admin-api-key=*** --tp 2"),
        ("sglang --api_key 'two words'", "sglang --api_key ***"),
        ("sglang --tokenizer-path 'a b'", "sglang --tokenizer-path 'a b'"),
        ("sglang 'unbalanced", "(not told: its quotes are not balanced)"),
    ],
)
def test_commands_are_told_without_their_secrets(command: str, wanted: str) -> None:
    assert told.without_secrets(command) == wanted


def test_of_sglang_only_what_decides_speed() -> None:
    found = told.sglang(
        {"version": "0.5.23", "tp_size": 2, "api_key": "s3cret", "launch_command": "x --api-key s3cret"}
    )
    assert found == {
        "engine": "SGLang", "version": "0.5.23", "settings": {"tp_size": 2}, "launch_command": "x --api-key ***",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("info", "drafts"),
    [
        ({"speculative_algorithm": None}, 0),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 5, "speculative_num_draft_tokens": 6}, 5),
        ({"speculative_algorithm": "DSPARK", "speculative_num_draft_tokens": 9}, 8),
        ({"speculative_algorithm": "DSPARK"}, None),
    ],
    ids=["none", "NEXTN", "DSPARK", "not told"],
)
def test_drafts_of_sglang(info: dict[str, Any], drafts: int | None) -> None:
    assert told.sglang_drafts(info) == drafts


@pytest.mark.parametrize(
    ("decoding", "drafts"),
    [
        ({}, 0),
        ({"algorithm": "NEXTN"}, 5),
        ({"algorithm": "NEXTN", "numSteps": 3}, 3),
        ({"algorithm": "DSPARK", "numDraftTokens": 9}, 8),
        ({"algorithm": "DSPARK"}, None),
    ],
)
def test_drafts_of_a_deployment(decoding: dict[str, Any], drafts: int | None) -> None:
    assert told.deployment_drafts(decoding) == drafts


def test_a_deployment_is_told_with_the_identity_of_its_weights() -> None:
    deployment = {
        "metadata": {"name": "flash", "generation": 3},
        "spec": {
            "model": {"source": "pvc://a/b"},
            "engine": {"runtime": "SGLang", "env": [{"name": "A", "value": "1"}]},
        },
        "status": {"currentRevision": "0123abcd"},
    }
    slot = {
        "metadata": {"name": "flash-0"},
        "status": {
            "node": "n1", "gpus": ["GPU-1"], "active": {"pod": "flash-0-0123abcd-0"},
            "weightSets": [{"role": "target", "rank": 0, "set": "feed"}, {"role": "nextn", "rank": 0, "set": "beef"}],
        },
    }  # fmt: skip
    found = told.deployment(deployment, [slot, {"metadata": {"name": "flash-1"}}])
    assert found["revision"] == "0123abcd"
    assert found["slots"][0]["identity"] == [
        {"role": "nextn", "rank": 0, "set": "beef"},
        {"role": "target", "rank": 0, "set": "feed"},
    ]
    assert found["slots"][0]["gpus"] == ["GPU-1"]
    assert found["slots"][1]["node"] is None
