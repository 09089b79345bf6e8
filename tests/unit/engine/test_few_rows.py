"""What goes SGLang's way in spite of our kernels for few rows, and how those are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ling_api.errors import BadInput
from ling_engine.kernels import plans
from ling_engine.sglang import few_rows, hook_variables

HIDDEN, COLUMNS, EXPERTS, SLOTS = 64, 32, 5, 3
USUAL = {
    "activation": "silu", "is_gated": True, "gemm1_alpha": None, "gemm1_clamp_limit": None, "swiglu_limit": None,
    "apply_router_weight_on_input": False, "no_combine": False, "num_experts": EXPERTS, "num_local_experts": EXPERTS,
    "inplace": False, "routed_scaling_factor": 2.5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in tests of the kernels: rows need not be on a GPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def summed(
    rows: int = 2, columns: int = COLUMNS, more: dict[str, Any] | None = None, weights: Any = None, **config: Any
) -> Any:
    x = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16)
    w1, w2 = (torch.zeros(EXPERTS, *size, dtype=torch.bfloat16) for size in ((2 * columns, HIDDEN), (HIDDEN, columns)))
    ids = torch.zeros(rows, SLOTS, dtype=torch.int32)
    told = (torch.zeros(rows, SLOTS) if weights is None else weights, ids, None)
    runner = SimpleNamespace(**(USUAL | config))
    return few_rows.summed(lambda *_, **named: ("SGLang's way", named), x, w1, w2, told, runner, **(more or {}))


@pytest.mark.parametrize(
    "given",
    [
        {"rows": 17},
        {"columns": 24},
        {"activation": "gelu"},
        {"is_gated": False},
        {"gemm1_alpha": 1.7},
        {"swiglu_limit": 10},
        {"apply_router_weight_on_input": True},
        {"no_combine": True},
        {"num_local_experts": 2},
        {"weights": torch.zeros(2, SLOTS, dtype=torch.bfloat16)},
        {"weights": torch.zeros(SLOTS, 2).T},
        {"more": {"use_fp8_w8a8": True}},
        {"more": {"fuse_swiglu_interleaved": True}},
        {"more": {"b1": torch.zeros(1)}},
        {"more": {"block_shape": [128, 128]}},
    ],
    ids=lambda given: next(iter(given.get("more", given))),
)
def test_what_our_kernels_are_not_for_goes_sglangs_way(given: dict[str, Any]) -> None:
    said, named = summed(**given)
    assert said == "SGLang's way"
    assert named == given.get("more", {}), "nothing that was given is lost"


ROUTER_GATE_MATVEC_MAX_M = 8  # as the module of SGLang's gate says it


class Gate:
    weight = torch.nn.Parameter(torch.zeros(8, HIDDEN))


@pytest.mark.parametrize(("rows", "ours"), [(1, False), (8, False), (9, True), (16, True), (17, False)])
def test_scores_are_ours_where_sglangs_own_kernel_ends(
    rows: int, monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    router = pytest.importorskip("ling_engine.kernels.router")
    monkeypatch.setattr(router, "scores", lambda *_, **__: "ours")
    monkeypatch.setattr(few_rows, "pdl", lambda: False)  # it asks SGLang
    x = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16)
    found = few_rows.scored(lambda *_: "SGLang's way", Gate(), x)
    assert found == ("ours" if ours else "SGLang's way")


@pytest.mark.parametrize(
    ("said", "parts"),
    [("", ()), ("experts", ("experts",)), ("scores,choice,experts", ("scores", "choice", "experts"))],
)
def test_the_variable_names_the_parts(said: str, parts: tuple[str, ...]) -> None:
    assert hook_variables.few_rows({hook_variables.FEW_ROWS: said}) == parts


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no part 'expert'; write some of scores,choice,experts,state,verify,products"):
        hook_variables.few_rows({hook_variables.FEW_ROWS: "expert"})


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("columns", [768, 384, 192], ids=["TP1", "TP2", "TP4"])
def test_flash_is_cut_into_whole_programs(columns: int, rows: int) -> None:
    found = plans.experts(2560, columns, rows)
    assert found is not None
    up, down = found
    assert up.fits(columns, 2560)
    assert down.fits(2560, columns)
    assert plans.scores(2560, 512) is not None


@pytest.mark.parametrize(
    ("columns", "summands", "cut"),
    [
        (157184, 2560, (64, 256, 1)), (40960, 2560, (64, 128, 1)), (12288, 2560, (32, 256, 1)),
        (2560, 6144, (32, 128, 4)),
        (128, 64, (32, 64, 1)),
    ],
    ids=["head", "context", "wide", "narrow", "tiny"],
)  # fmt: skip
def test_a_rounded_matrix_is_cut_into_enough_programs(columns: int, summands: int, cut: tuple[int, int, int]) -> None:
    found = plans.rounded(summands, columns)
    assert found is not None
    assert (found.columns, found.summands, found.parts) == cut
    assert found.fits(columns, summands / found.parts)


@pytest.mark.parametrize(
    ("columns", "summands", "cut"),
    [
        (157184, 2560, (64, 1, 0)), (20512, 2560, (32, 1, 396)), (2560, 4096, (32, 4, 0)), (576, 2560, None),
        (4104, 64, None),
    ],
    ids=["head", "KDA", "narrow", "a library's", "no whole blocks"],
)  # fmt: skip
def test_a_matrix_in_bf16_is_cut_so_that_all_programs_run_at_once(
    columns: int, summands: int, cut: tuple[int, int, int] | None
) -> None:
    found = plans.product(summands, columns)
    assert (found and (found.columns, found.parts, found.programs)) == cut


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({}, True), ({"rows": 16}, True), ({"rows": 1}, False), ({"rows": 17}, False),
        ({"bias": torch.zeros(2048)}, False), ({"columns": 576}, False), ({"dtype": torch.float32}, False),
        ({"across": True}, False), ({"many": True}, False),
    ],
    ids=["two rows", "16", "one", "17", "a bias", "few columns", "another type", "transposed", "3 dimensions"],
)  # fmt: skip
def test_products_are_ours_for_the_rows_of_a_round(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    products = pytest.importorskip("ling_engine.kernels.products")
    monkeypatch.setattr(products.Matrix, "product", lambda *_, **__: "ours")
    monkeypatch.setattr(few_rows, "pdl", lambda: False)
    summands, columns = 128, given.get("columns", 2048)
    weight = torch.zeros(columns, summands, dtype=torch.bfloat16)
    layer = SimpleNamespace(weight=torch.nn.Parameter(weight.T.contiguous().T if given.get("across") else weight))
    x = torch.zeros(given.get("rows", 2), summands, dtype=given.get("dtype", torch.bfloat16))
    x = x[None] if given.get("many") else x
    found = few_rows.multiplied(lambda *_: "SGLang's way", object(), layer, x, given.get("bias"))
    assert found == ("ours" if ours else "SGLang's way")


@pytest.mark.parametrize(
    ("words", "rank", "has"),
    [(157184, 256, True), (1000, 16, True), (157184, 1024, False), (157184, 192, False), (1 << 20, 256, False)],
    ids=["Flash", "few words", "a high rank", "no power of two", "too many words"],
)
def test_a_markov_head_has_a_plan_where_a_program_can_hold_a_row(words: int, rank: int, *, has: bool) -> None:
    assert (plans.markov(words, rank) is not None) is has


def test_sizes_that_cannot_be_cut_have_no_plan() -> None:
    assert plans.rounded(2560, 24) is None
    assert plans.experts(2560, 24, 1) is None
    assert plans.scores(2560, 10) is None
    assert plans.scores(8192, 512) is None


@pytest.mark.parametrize(
    ("experts", "changed", "fits"),
    [(512, {}, True), (64, {}, True), (513, {}, False), (512, {"groups": 6}, False), (8, {}, False)],
    ids=["Flash", "cut", "uneven", "groups", "too few"],
)
def test_a_choice_is_of_equal_groups_a_power_of_two_of_them(experts: int, changed: dict[str, Any], fits: bool) -> None:
    choice = plans.Choice(**({"chosen": 8, "slots": 9, "groups": 8, "of_groups": 4} | changed))
    assert choice.fits(experts) is fits


def test_without_a_gpu_and_without_the_interpreter_nothing_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    assert summed()[0] == "SGLang's way"
