"""What the table says, and above all what it must not leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ling_bench import protocol, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_bench.result import Result, Sample, Side

    type Make[T] = Callable[..., T]


def test_a_result_says_protocol_acceptance_hardware_and_accept_length(make_result: Make[Result]) -> None:
    text = report.result(make_result())
    for said in ("published: 8192 tokens in, 1024 out", "real", "1x H200", "accept length 3.197", "5 drafts a round"):
        assert said in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds_from": None}, "accept length not known"),
        ({"drafts": None}, "bound not checked: say --drafts"),
    ],
    ids=["no counters", "no bound"],
)
def test_what_is_not_known_is_said(
    make_side: Make[Side], make_result: Make[Result], change: dict[str, Any], said: str
) -> None:
    assert said in report.result(make_result(make_side(**change)))


def test_no_drafts(make_sample: Make[Sample], make_side: Make[Side], make_result: Make[Result]) -> None:
    side = make_side(samples=(make_sample(rounds=0.0, given=0.0),))
    assert "no verify rounds" in report.result(make_result(side, acceptance="none"))


def test_custom_sizes_and_refusals_are_loud(make_result: Make[Result]) -> None:
    asked = protocol.random_prompts(64, 16).stamp()
    text = report.result(make_result(protocol=asked, verdict="refused", why=("accept length 9 is above",)))
    assert "CUSTOM: 64 tokens in, 16 out" in text
    assert "REFUSED: this result stands for nothing." in text
    assert "accept length 9 is above" in text


def test_a_replay_names_its_file(make_result: Make[Result]) -> None:
    work = {"kind": "replay", "file": "chats.jsonl", "requests": 3, "warmup": 2, "hash": "sha256:00"}
    text = report.result(make_result(protocol=protocol.replay().stamp(), workload=work))
    assert "REPLAY: prompts of chats.jsonl, at most 1024 tokens out" in text
