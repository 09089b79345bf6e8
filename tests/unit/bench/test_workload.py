"""Prompts: exact in length, no two that begin alike, the same for the same seed; and lines of a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ling_api.errors import BadInput
from ling_bench import workload
from ling_bench.workload import Prompt, Workload


def drawn(**changed: Any) -> Workload:
    given: dict[str, Any] = {
        "seed": 1, "salt": "a", "requests": 6, "warmup": 2, "tokens": 64, "output_tokens": 8, "ids": (10, 99),
    }  # fmt: skip
    return workload.drawn(**given | changed)


def every(found: Workload) -> list[list[int]]:
    return [one.ids or [] for one in (*found.warmup, *found.prompts)]


def test_prompts_have_exactly_as_many_ids_as_asked_for_in_their_range() -> None:
    for tokens in (1, 15, 16, 17, 64):
        found = every(drawn(tokens=tokens))
        assert {len(ids) for ids in found} == {tokens}
        assert all(10 <= token <= 99 for ids in found for token in ids)


def test_no_prompt_begins_as_another_one_nor_as_one_of_an_earlier_run() -> None:
    one, two = every(drawn(salt="a", ids=(10, 400))), every(drawn(salt="b", ids=(10, 400)))
    assert len({ids[0] for ids in one}) == len(one)
    assert all(first[:16] != second[:16] for first in one for second in two)


def test_the_workload_is_the_seeds_whatever_the_salt() -> None:
    one, two, other = drawn(salt="a"), drawn(salt="b"), drawn(seed=2)
    assert one.stamp["hash"] == two.stamp["hash"] != other.stamp["hash"]
    assert [ids[16:] for ids in every(one)] == [ids[16:] for ids in every(two)]
    assert drawn() == drawn()
    assert one.stamp["salt"] == "a"


@pytest.mark.parametrize("change", [{"requests": 5}, {"tokens": 65}, {"output_tokens": 9}, {"ids": (10, 98)}])
def test_the_hash_knows_all_that_was_asked(change: dict[str, Any]) -> None:
    assert drawn(**change).stamp["hash"] != drawn().stamp["hash"]


def replayed(lines: list[str], **changed: Any) -> Workload:
    return workload.replayed(lines, **{"file": "f.jsonl", "requests": None, "warmup": 2, "output_tokens": 8} | changed)


def test_lines_of_a_file_are_replayed_in_their_order() -> None:
    chat = [{"role": "user", "content": "Hi"}]
    lines = [json.dumps({"prompt": "One"}), "", json.dumps({"prompt": [1, 2], "max_tokens": 3, "source": "x"})]
    found = replayed([*lines, json.dumps({"messages": chat})])
    wanted = (Prompt(text="One"), Prompt(ids=[1, 2], output_tokens=3), Prompt(messages=chat))
    assert found.prompts == wanted
    assert found.warmup == (wanted[2], wanted[1])
    assert (found.stamp["requests"], found.stamp["begin_alike"]) == (3, 0)
    assert replayed(lines, requests=1).prompts == wanted[:1]


def test_prompts_that_begin_alike_are_counted() -> None:
    same = "You are a helpful assistant who answers at length. " * 3
    assert replayed([json.dumps({"prompt": f"{same}{n}"}) for n in range(4)]).stamp["begin_alike"] == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "f.jsonl:1: no JSON"),
        ("[]", "f.jsonl:1: write an object"),
        ('{"prompt": "a", "messages": []}', "f.jsonl:1: write an object"),
        ('{"prompt": ""}', "f.jsonl:1: prompt is empty"),
        ('{"prompt": ["a"]}', "neither text nor token ids"),
        ('{"messages": "a"}', "messages is no list"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ("", "no prompts"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        replayed([line])
