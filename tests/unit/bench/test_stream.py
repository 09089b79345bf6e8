"""From stamped lines to an answer: first token, last token, their number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ling_bench import stream
from ling_bench.errors import EndpointFailed
from ling_bench.stream import Raw


def raw(*events: tuple[float, Any]) -> Raw:
    lines = [(when, b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n") for when, e in events]
    return Raw(began=10.0, lines=tuple(line for each in lines for line in (each, (each[0], b"\n"))))


def text(said: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": said, "finish_reason": finish}]}


def usage(tokens: int, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens, **more}}


def test_time_per_token_is_last_less_first_by_one_token_less() -> None:
    found = stream.read(
        raw((11.0, text("a")), (11.4, text("bcd")), (12.0, text("ef", "length")), (12.5, usage(6)), (13.0, b"[DONE]"))
    )
    assert found.times == pytest.approx((1.0, 1.4, 2.0))
    assert found.tpot == pytest.approx(1.0 / 5)
    assert found.gaps == pytest.approx([0.4, 0.6])
    assert (found.tokens, found.prompt_tokens, found.finish, found.cached_tokens) == (6, 5, "length", None)


def test_a_chunk_whose_text_is_not_complete_yet_is_a_token() -> None:
    assert len(stream.read(raw((11.0, text("")), (12.0, text("e", "length")), (12.1, usage(2)))).times) == 2


def test_a_chats_first_chunk_is_none() -> None:
    def delta(**said: str) -> dict[str, Any]:
        return {"choices": [{"delta": said, "finish_reason": None}]}

    found = stream.read(
        raw((11.0, delta(role="assistant", content="")), (12.0, delta(reasoning_content="so")),
            (13.0, delta(content="a")), (13.5, {"choices": [{"delta": {}, "finish_reason": "stop"}]}), (13.6, usage(2)))
    )  # fmt: skip
    assert found.times == pytest.approx((2.0, 3.0))
    assert found.finish == "stop"


def test_one_token_has_no_time_per_token() -> None:
    found = stream.read(raw((11.0, text("a", "stop")), (11.1, usage(1))))
    assert found.tpot is None
    assert found.gaps == []


@pytest.mark.parametrize(
    "closing",
    [
        [usage(3, completion_tokens_details={"spec_verify_ct": 4})],
        [{"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 4}}}, usage(3)],
    ],
    ids=["in the usage", "SGLang's own field"],
)
def test_rounds_as_the_answer_tells_them(closing: list[dict[str, Any]]) -> None:
    found = stream.read(raw((11.0, text("a", "length")), *((12.0, each) for each in closing)))
    assert found.rounds == 4


def test_tokens_of_a_prefix_cache() -> None:
    found = stream.read(raw((11.0, text("a", "length")), (12.0, usage(1, prompt_tokens_details={"cached_tokens": 4}))))
    assert found.cached_tokens == 4


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([(11.0, {"error": {"message": "out of memory"}})], "out of memory"),
        ([(11.0, usage(1))], "without a token"),
        ([(11.0, text("a"))], "include_usage"),
        ([(11.0, b"{")], "no JSON"),
        ([(11.0, b"[" * 20_000)], "no JSON"),
        ([(11.0, {"choices": [7]})], "`choices` is no list"),
        ([(11.0, text("a")), (12.0, {"usage": [1]})], "`usage` is no JSON object"),
        ([(11.0, {"choices": [{"delta": "a"}]})], "`delta` is no JSON object"),
        ([(11.0, text("a")), (12.0, {"usage": {"completion_tokens": "1"}})], "include_usage"),
    ],
    ids=["an error", "no token", "no number", "no JSON", "too deep", "choices", "usage", "delta", "number in quotes"],
)
def test_what_is_no_answer_is_the_endpoints_failure(events: list[tuple[float, Any]], said: str) -> None:
    with pytest.raises(EndpointFailed, match=said):
        stream.read(raw(*events))
