"""How SGLang is called: sizes that are computed, recipes, and what is refused before a pod exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import flash

from ling_api.errors import BadInput
from ling_engine.decoding import DSPARK, NEXTN, NONE
from ling_engine.sglang import arguments, extras, hook_variables, recipes, switches, wishes
from ling_engine.sglang.families import Family, family
from ling_engine.sglang.shape import shape_of

SHAPE = shape_of(flash.target(), flash.draft())
DECODING: dict[str, dict[str, Any]] = {
    NONE: {},
    NEXTN: {"num_steps": 5, "num_draft_tokens": 6},
    DSPARK: {"draft": "/models/draft"},
}


def wanted(algorithm: str = NONE, **changes: Any) -> wishes.Wishes:
    values = {"path": "/models/ling", "served_name": "ling", "context_length": 16384, **DECODING[algorithm], **changes}
    return wishes.Wishes(algorithm=algorithm, **values)


def called(one: wishes.Wishes, processor: Family = Family.HOPPER, shape: Any = SHAPE) -> dict[str, str]:
    """Flags with their values."""
    argv = arguments.command_line(one, shape, processor).argv
    flags: dict[str, str] = {}
    for word in argv:
        if word.startswith("--"):
            name, flags[word] = word, ""
        else:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags


@pytest.mark.parametrize(
    ("one", "tokens"),
    [
        (wanted(), 4 * (16384 + 2)),
        (wanted(concurrency=1), 16384 + 2),
        (wanted(NEXTN), 4 * (16384 + 12 + 2)),
        (wanted(DSPARK), 4 * (16384 + 48)),  # 18 more and a page and one, in pages of 16
    ],
    ids=["four requests", "one request", "two rounds of NEXTN behind each", "DSPARK in pages"],
)
def test_the_token_pool_holds_every_request_at_its_full_length(one: wishes.Wishes, tokens: int) -> None:
    flags = called(one)
    assert flags["--max-total-tokens"] == str(tokens)
    assert flags["--max-running-requests"] == flags["--max-mamba-cache-size"] == str(one.concurrency)


@pytest.mark.parametrize("algorithm", [NONE, NEXTN, DSPARK])
@pytest.mark.parametrize("processor", [Family.HOPPER, Family.BLACKWELL])
def test_nothing_is_left_for_sglang_to_guess(algorithm: str, processor: Family) -> None:
    flags = called(wanted(algorithm), processor)
    sizes = {"--mem-fraction-static", "--max-total-tokens", "--max-running-requests", "--max-mamba-cache-size"}
    sizes |= {"--cuda-graph-bs-decode", "--cuda-graph-max-bs-decode", "--chunked-prefill-size", "--context-length"}
    assert sizes <= flags.keys()
    assert 0.5 < float(flags["--mem-fraction-static"]) < 1
    assert flags["--load-format"] == "private"


def test_a_chain_of_drafts() -> None:
    flags = called(wanted(NEXTN))
    assert flags["--speculative-algorithm"] == NEXTN
    names = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    assert [flags[name] for name in names] == ["5", "1", "6"]


@pytest.mark.parametrize(
    ("one", "rows"),
    [(wanted(), 0), (wanted(NEXTN), 6), (wanted(DSPARK), 9), (wanted(DSPARK, num_draft_tokens=5), 5)],
    ids=["plain", "a chain and one", "the draft's block and one", "as asked"],
)
def test_how_many_rows_are_verified_is_known_from_the_draft(one: wishes.Wishes, rows: int) -> None:
    assert arguments.command_line(one, SHAPE, Family.HOPPER).draft_tokens == rows


@pytest.mark.parametrize(("tokens", "ring"), [(2, 4), (5, 16), (8, 16), (9, 32), (16, 32), (17, 64)])
def test_the_replay_ring_is_a_power_of_two_and_twice_a_round(tokens: int, ring: int) -> None:
    assert recipes.replay_ring(tokens) == ring
    if tokens <= 9:
        flags = called(wanted(DSPARK, num_draft_tokens=tokens))
        assert flags["--linear-replayssm-cache-len"] == str(ring)
        assert flags["--speculative-dspark-block-size"] == str(tokens - 1)


def test_a_router_of_other_precision_is_asked_for_only_where_it_differs() -> None:
    assert "--json-model-override-args" not in called(wanted(router_dtype="fp32"))
    assert json.loads(called(wanted(router_dtype="bf16"))["--json-model-override-args"]) == {"router_dtype": "bf16"}


def test_without_the_cache_sglang_loads_by_itself() -> None:
    assert "--load-format" not in called(wanted(weight_cache="Off"))


def test_a_gpus_family() -> None:
    assert [family(one) for one in ((9, 0), (10, 3), None)] == [Family.HOPPER, Family.BLACKWELL, Family.CPU]
    with pytest.raises(BadInput, match=r"8\.0: there are recipes for 9\.x"):
        family((8, 0))


ROWS, ACCEPT, DRAFT = "LING_FEW_ROWS", "LING_ACCEPT_IN_GRAPH", "LING_DRAFT_FP8"


@pytest.mark.parametrize(
    ("processor", "algorithm", "quantization", "tp", "has"),
    [
        (Family.HOPPER, DSPARK, "", 1, {ROWS, ACCEPT, DRAFT}),
        (Family.HOPPER, NONE, "", 1, {ROWS}),
        (Family.HOPPER, DSPARK, "", 2, set()),
        (Family.HOPPER, DSPARK, "fp8", 1, set()),
        (Family.HOPPER, NEXTN, "", 1, {ROWS, DRAFT}),
        (Family.HOPPER, NEXTN, "", 2, set()),
        (Family.BLACKWELL, DSPARK, "", 1, set()),
    ],
    ids=["DSPARK", "None", "two ranks", "fp8", "NEXTN", "NEXTN on two", "Blackwell"],
)
def test_our_own_kernels_are_in_the_recipe_that_they_were_measured_in(
    processor: Family, algorithm: str, quantization: str, tp: int, has: set[str]
) -> None:
    found = recipes.recipe(processor, algorithm, quantization, tp)
    assert {name for name in found.env if name.startswith("LING_")} == has
    assert bool(hook_variables.few_rows(found.env)) is (ROWS in has)
    assert hook_variables.accept_in_graph(found.env) is (ACCEPT in has)


def test_results_that_do_not_depend_on_other_requests_leave_out_what_is_for_few_rows() -> None:
    shape, usual = SHAPE, wanted(algorithm=NONE)
    alike = wanted(algorithm=NONE, extra_args=("--enable-deterministic-inference",))
    with_gemv, without = (arguments.command_line(one, shape, Family.HOPPER) for one in (usual, alike))
    assert "--bf16-gemm-backend" in with_gemv.argv
    assert "--bf16-gemm-backend" not in without.argv
    assert (ROWS in with_gemv.env, ROWS in without.env) == (True, False)
    drafted = recipes.recipe(Family.HOPPER, NEXTN, alike=True)
    assert DRAFT not in drafted.env, "few rows are multiplied in fp8, many in bf16"


@pytest.mark.parametrize(
    ("said", "algorithm", "tp", "parts"),
    [("head,head", NEXTN, 2, ("head",)), ("markov,head", DSPARK, 1, ("markov", "head")), ("", NONE, 1, ())],
    ids=["once", "as it is said", "nothing"],
)
def test_parts_of_a_draft(said: str, algorithm: str, tp: int, parts: tuple[str, ...]) -> None:
    assert hook_variables.draft_fp8({"LING_DRAFT_FP8": said}, algorithm, tp) == parts


@pytest.mark.parametrize(
    ("said", "algorithm", "tp", "instead"),
    [("markov", NEXTN, 1, "some of head$"), ("head", DSPARK, 2, "leave it out"), ("head", NONE, 1, "leave it out")],
    ids=["NEXTN", "DSPARK on two ranks", "no draft"],
)
def test_a_part_that_a_draft_has_not_is_refused(said: str, algorithm: str, tp: int, instead: str) -> None:
    with pytest.raises(BadInput, match=f"LING_DRAFT_FP8: no part '{said}'; .*{instead}"):
        hook_variables.draft_fp8({"LING_DRAFT_FP8": said}, algorithm, tp)


def test_every_switch_says_where_it_comes_from_and_no_flag_comes_twice() -> None:
    assert all(switch.source and switch.verified in ("H200", "source-only") for switch in switches.SWITCHES)
    for processor in Family:
        for algorithm in (NONE, NEXTN, DSPARK):
            for quantization in ("", "fp8"):
                names = [switch.name for switch in recipes.recipe(processor, algorithm, quantization, 4).switches]
                assert len(names) == len(set(names)), (processor, algorithm, quantization)


NO_NEXTN = shape_of(flash.target(num_nextn_predict_layers=0))
FP8 = shape_of(flash.target(quantization_config=flash.FP8))


@pytest.mark.parametrize(
    ("one", "processor", "shape", "sentence"),
    [
        (wanted(NEXTN), Family.HOPPER, NO_NEXTN, "the checkpoint has no NEXTN layer"),
        (wanted(DSPARK), Family.HOPPER, NO_NEXTN, "there is no draft in /models/draft"),
        (wanted(DSPARK), Family.CPU, SHAPE, "SGLang has it for GPUs only"),
        (wanted(DSPARK, num_draft_tokens=10), Family.HOPPER, SHAPE, "10: the draft was made for 9 at most"),
        (wanted(context_length=300000), Family.HOPPER, SHAPE, "made for 262144 tokens at most"),
        (wanted(), Family.CPU, FP8, "an fp8 checkpoint needs a GPU"),
        (wanted(tp=2), Family.CPU, SHAPE, "runs with 1 rank only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_combinations_are_refused(one: wishes.Wishes, processor: Family, shape: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        arguments.command_line(one, shape, processor)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tp": 3}, "--tp 3: write one of 1, 2, 4, 8"),
        ({"router_dtype": "fp16"}, "--router-dtype 'fp16': write one of fp32, bf16"),
        ({"weight_cache": "Maybe"}, "write one of Required, Preferred, Off"),
        ({"concurrency": 0}, "write a number from 1 to 64"),
        ({"context_length": 4}, "needs 16 tokens"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_wishes_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        wishes.check(wanted(**change))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cpu-offload-gb=4"], "--cpu-offload-gb: not among the flags"),
        (["--enable-memory-saver"], "--enable-memory-saver: not among"),
        (["--mem-fraction-static", "0.5"], "--mem-fraction-static: not among"),
        (["--tp", "2"], "this is set by --tp"),
        (["--load-format=auto"], "this is set by --weight-cache"),
        (["--stream-interval"], "a value must follow"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_extra_flags_that_touch_weights_or_sizes_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        extras.checked(words)


def test_extra_flags_come_last_and_count_in_the_sizes() -> None:
    flags = called(wanted(extra_args=("--page-size=64", "--tool-call-parser", "ling3")))
    assert flags["--page-size"] == "64"
    assert flags["--tool-call-parser"] == "ling3"
    assert called(wanted(context_length=1000, extra_args=("--page-size=64",)))["--max-total-tokens"] == str(4 * 1088)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (flash.target(architectures=["LlamaForCausalLM"]), "this engine serves BailingMoeV3ForCausalLM"),
        (flash.target(hidden_size="wide"), "hidden_size is 'wide'"),
        (flash.target(quantization_config={"quant_method": "awq"}), "bf16 and block-wise fp8"),
    ],
    ids=["architecture", "number", "quantization"],
)
def test_checkpoints_of_another_kind_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        shape_of(keys)


def test_the_page_of_recipes_has_every_switch() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sglang.md").read_text()
    for switch in switches.SWITCHES:
        joint = " " if switch.is_flag else "="
        name = f"{switch.name}{joint}{switch.value}" if switch.value else switch.name
        gain = f"{switch.gain[0]:.2f} to {switch.gain[1]:.2f} of a step" if switch.gain else ""
        rows = [row for row in page.splitlines() if f"`{name}`" in row and gain in row]
        assert any(row.endswith(f"| {switch.verified} |") for row in rows), name
