"""Accept length from differences of counters, as each engine names them."""

from __future__ import annotations

import pytest

from ling_bench import counters
from ling_bench.counters import Family, Rounds

LING = """\
# HELP ling_output_tokens_total Tokens emitted.
ling_output_tokens_total {0}
ling_output_tokens_created 1.7e9
ling_verify_rounds_total {1}
ling_accepted_tokens_total {2}
sglang:generation_tokens_total{{model_name="x"}} 9e9
"""
SGLANG = """\
sglang:num_running_reqs{{model_name="x",tp_rank="0"}} 0.0
sglang:generation_tokens_total{{is_streaming="True",model_name="a b"}} {0}
sglang:generation_tokens_total{{is_streaming="False",model_name="a b"}} 7.0
sglang:spec_verify_calls_total{{model_name="a b"}} {1}
"""
VLLM = """\
vllm:generation_tokens_total{{engine="0"}} {0}
vllm:spec_decode_num_drafts_total{{engine="0"}} {1}
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2}
"""


def family(text: str) -> Family:
    found = counters.family_of(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("form", "engine", "before", "after", "wanted"),
    [
        (LING, "Ling", (100, 20, 80), (164, 40, 143), Rounds(tokens=64, rounds=20, given=63)),
        (LING, "Ling", (100, 20, 80), (164, 20, 80), Rounds(tokens=64, rounds=0, given=0)),
        (SGLANG, "SGLang", (100, 20), (164, 40), Rounds(tokens=64, rounds=20, given=63)),
        (SGLANG, "SGLang", (100, 0), (164, 0), Rounds(tokens=64, rounds=0, given=0)),
        (VLLM, "vLLM", (100, 20, 60), (164, 40, 103), Rounds(tokens=64, rounds=20, given=63)),
    ],
    ids=["Ling", "Ling without drafts", "SGLang", "SGLang without drafts", "vLLM"],
)
def test_differences(form: str, engine: str, before: tuple[int, ...], after: tuple[int, ...], wanted: Rounds) -> None:
    one, two = form.format(*before, 0), form.format(*after, 0)
    named = family(one)
    assert named.engine == engine
    assert counters.between(counters.read(one, named), counters.read(two, named), named) == wanted


def test_a_counter_that_nothing_has_touched_is_zero() -> None:
    text = 'sglang:num_running_reqs{model_name="x"} 0.0\n'
    assert counters.read(text, family(text)).tokens == 0


def test_a_counter_that_went_back_is_no_difference() -> None:
    one, two = (counters.read(LING.format(*each), family(LING)) for each in ((100, 20, 80), (64, 20, 63)))
    assert counters.between(one, two, family(LING)) is None


def test_metrics_of_somebody_else_are_nobodys() -> None:
    assert counters.family_of("process_cpu_seconds_total 4\n") is None
