"""The published protocol is locked: whatever differs has another name, and requests say exactly it."""

from __future__ import annotations

import pytest

from ling_bench import protocol
from ling_bench.workload import Prompt


def test_the_published_protocol_is_the_published_one() -> None:
    assert protocol.random_prompts().stamp() == {
        "name": "published", "input_tokens": 8192, "output_tokens": 1024, "ignore_eos": True, "temperature": 0.0,
        "concurrency": 1, "range_ratio": 1.0, "stream": True, "tpot": "(last - first) / (n - 1), mean over requests",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "name"),
    [((None, None), "published"), ((8192, 1024), "published"), ((8191, None), "custom"), ((None, 1025), "custom")],
    ids=["nothing said", "said as it is", "shorter prompts", "longer answers"],
)
def test_other_sizes_are_stamped_custom(sizes: tuple[int | None, int | None], name: str) -> None:
    assert protocol.random_prompts(*sizes).name == name


def test_a_request_of_the_published_protocol() -> None:
    asked = protocol.request(protocol.random_prompts(), Prompt(ids=[5, 6, 7]), "ling")
    body = {
        "model": "ling", "prompt": [5, 6, 7], "max_tokens": 1024, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert asked == ("/v1/completions", body)
    assert protocol.request(protocol.random_prompts(), Prompt(ids=[5, 6, 7]), "ling", rounds=True) == (
        "/v1/completions",
        body | {"return_spec_tokens_details": True},
    )


@pytest.mark.parametrize(
    ("prompt", "path", "wanted"),
    [
        (Prompt(text="Hello", output_tokens=7), "/v1/completions", {"prompt": "Hello", "max_tokens": 7}),
        (
            Prompt(messages=[{"role": "user", "content": "Hello"}]), "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1024},
        ),
    ],
    ids=["text", "chat"],
)  # fmt: skip
def test_a_replay_ends_where_the_model_ends(prompt: Prompt, path: str, wanted: dict[str, object]) -> None:
    asked = protocol.replay()
    found, body = protocol.request(asked, prompt, "ling")
    assert (asked.name, found) == ("replay", path)
    assert wanted.items() <= body.items()
    assert "ignore_eos" not in body
    assert body["temperature"] == 0
