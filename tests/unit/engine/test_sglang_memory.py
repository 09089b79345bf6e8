"""The memory plan of an SGLang engine: what fits where, and that its caches are SGLang's own arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import flash

from ling_api.memoryplan import room
from ling_engine.decoding import DSPARK, NEXTN, NONE
from ling_engine.sglang import arguments, memory, sizes, wishes
from ling_engine.sglang.families import Family
from ling_engine.sglang.shape import Shape, shape_of

GIB = 1 << 30
FLASH, CUT = (shape_of(flash.target(*size), flash.draft()) for size in ((), (12, 64)))
DECODING: dict[str, dict[str, Any]] = {
    NONE: {},
    NEXTN: {"num_steps": 5, "num_draft_tokens": 6},
    DSPARK: {"draft": "/models/draft"},
}


def command(shape: Shape, algorithm: str, tp: int = 1, **changes: Any) -> arguments.Arguments:
    values = {"path": "/m", "served_name": "m", "context_length": 16384, **DECODING[algorithm], **changes}
    wanted = wishes.Wishes(algorithm=algorithm, tp=tp, **values)
    return arguments.command_line(wanted, shape, Family.HOPPER)


# How many engines of four requests fit beside one copy of the bf16 weights: without speculation, with NEXTN, DSPARK.
@pytest.mark.parametrize(
    ("tp", "card", "engines"),
    [
        (1, 80, (0, 0, 0)), (1, 141, (0, 0, 0)), (1, 180, (0, 0, 0)),
        (2, 80, (0, 0, 0)), (2, 141, (2, 1, 1)), (2, 180, (2, 2, 2)),
        (4, 80, (2, 1, 1)), (4, 141, (2, 2, 2)), (4, 180, (2, 2, 2)),
        (8, 80, (2, 2, 2)), (8, 141, (2, 2, 2)), (8, 180, (2, 2, 2)),
    ],
)  # fmt: skip
def test_what_fits_on_a_card(tp: int, card: int, engines: tuple[int, ...]) -> None:
    found = []
    for algorithm in (NONE, NEXTN, DSPARK):
        called = command(FLASH, algorithm, tp)
        fits = [
            room(card * 10**9, called.weights, {str(one): called.plan for one in range(count)}).fits for count in (1, 2)
        ]
        found.append(sum(fits))
    assert tuple(found) == engines


@pytest.mark.parametrize(
    ("algorithm", "concurrency", "page", "backends"),
    [(NONE, 1, 1, 1), (NEXTN, 1, 1, 7), (NEXTN, 16, 1, 7), (DSPARK, 1, 16, 2)],
    ids=["None", "NEXTN", "NEXTN, 16 requests", "DSPARK, pages of 16"],
)
def test_page_tables_grow_with_context_and_requests(algorithm: str, concurrency: int, page: int, backends: int) -> None:
    load = memory.Load(
        algorithm=algorithm, tp=1, concurrency=concurrency, context_length=262_144, page=page, ring=0,
        draft_tokens={NONE: 0, NEXTN: 6, DSPARK: 9}[algorithm], prefill_rows=2048,
    )  # fmt: skip
    assert memory.page_tables(load) == backends * (262_144 // page) * (16 * concurrency + 24)
    without = memory.CONSTANTS[f"workspaces {algorithm}"].nbytes
    assert memory.plan(FLASH, load).private["workspaces"] == without + memory.page_tables(load)


@pytest.mark.parametrize(
    ("shape", "tp", "target"),
    [(FLASH, 4, 62.2e9), (FLASH, 2, 124.5e9), (CUT, 1, 11.0e9)],
    ids=["published: about 63 GB a rank at TP4", "TP2", "cut to 12 layers and 64 experts"],
)
def test_weights_of_a_rank(shape: Shape, tp: int, target: float) -> None:
    assert sizes.set_bytes(shape, ("target",), tp, 1 << 21)["target"] == pytest.approx(target, rel=0.02)


def test_the_sets_of_an_engine_that_ran() -> None:
    """Bytes of the sealed sets of the cut checkpoint with its drafts, on an H200; its draft taps 5 layers."""
    measured = {"target": 10_880_024_576, "nextn": 866_123_776, "dspark": 1_119_879_168}
    assert sizes.set_bytes(CUT, tuple(measured), 1, 1 << 21) == measured


def test_a_quantized_checkpoint_takes_half() -> None:
    fp8 = shape_of(flash.target(quantization_config=flash.FP8))
    half, whole = (sizes.set_bytes(shape, ("target",), 4, 1 << 21)["target"] for shape in (fp8, FLASH))
    assert half == pytest.approx(whole / 2, rel=0.03)


def test_the_caches_of_the_public_checkpoint() -> None:
    """Published: 8,064 bytes a token in bf16; states of 73.4 MB a request in fp32 and 2.6 MB of convolution."""
    assert memory.kv_bytes_a_token(FLASH) == 8064
    load = memory.Load(
        algorithm=NONE, tp=1, concurrency=1, context_length=64, draft_tokens=0, page=1, ring=0, prefill_rows=64
    )
    slots = 2  # one is padding
    assert memory.state_bytes(FLASH, load) == slots * (35 * 32 * 128 * 128 * 4 + 35 * 3 * 3 * 32 * 128 * 2)


def test_speculation_keeps_what_a_round_may_take_back() -> None:
    plain, nextn, dspark = (command(FLASH, one).plan.private["states"] for one in (NONE, NEXTN, DSPARK))
    assert nextn == pytest.approx(7 * plain, rel=0.01)  # the state, and one for each of six rows
    assert plain < dspark < nextn  # a ring of records instead of states


def test_graphs_are_captured_for_every_small_batch() -> None:
    assert [memory.graph_sizes(one) for one in (1, 4, 6, 16)] == [
        (1,),
        (1, 2, 3, 4),
        (1, 2, 3, 4, 6),
        (1, 2, 3, 4, 8, 12, 16),
    ]


@pytest.mark.parametrize(
    ("algorithm", "context", "measured"),
    [(NONE, 2048, 1092), (NEXTN, 2048, 1861), (DSPARK, 2048, 1761), (NEXTN, 4096, 1664)],
    ids=["none", "nextn", "dspark", "nextn, second engine of a slot: what it adds"],
)
def test_the_measured_engine_fits_its_plan_and_is_not_half_of_it(algorithm: str, context: int, measured: int) -> None:
    """MiB of the whole GPU without the weights of the 12-layer cut, batch 1, warmed up, on an H200."""
    plan = command(CUT, algorithm, concurrency=1, context_length=context).plan
    assert measured <= plan.total / memory.MIB < 2 * measured


@pytest.mark.parametrize(
    ("algorithm", "logged"), [(NONE, 0.04), (NEXTN, 0.29), (DSPARK, 0.41)], ids=["none", "nextn", "dspark"]
)
def test_pools_are_those_that_sglang_logged(algorithm: str, logged: float) -> None:
    """GiB of all pools of the cut on an H200: 4,096 tokens, batch 1. SGLang logs hundredths, before and after."""
    private = command(CUT, algorithm, concurrency=1, context_length=4096).plan.private
    assert sum(private[one] for one in ("kv", "draft_kv", "states")) / GIB == pytest.approx(logged, abs=0.02)


def test_sglang_may_use_what_the_plan_gives_its_pools_and_not_all() -> None:
    called = command(FLASH, NEXTN, 4)
    weights = sum(called.weights.values())
    part = memory.fraction(weights, called.plan)
    free = weights + called.plan.total - called.plan.private["context"] - called.plan.private["communicators"]
    pools = sum(called.plan.private[one] for one in ("kv", "draft_kv", "states"))
    workspaces = called.plan.private["workspaces"]
    assert free - workspaces - weights - free * (1 - part) >= pools - GIB // 16


def test_every_assumed_constant_says_why() -> None:
    assert all(one.source for one in memory.CONSTANTS.values())
    assert {name for name, one in memory.CONSTANTS.items() if not one.measured} == {
        "communicators",
        f"next graph {NONE}",
        f"next graph {DSPARK}",
    }


DRAFT = flash.draft(
    12, hidden_size=2560, num_attention_heads=32, num_key_value_heads=32, intermediate_size=6144, vocab_size=157184
)  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "parts", "numbers"),
    [
        (NEXTN, "head", 157184 * 2560),
        (DSPARK, "head,markov", 157184 * (2560 + 256)),
        (DSPARK, "layers", 5 * 2560 * (3 * 4096 + 3 * 6144 + 3 * 4096 + 2560)),
        (DSPARK, "", 0),
    ],
    ids=["NEXTN's head", "DSPARK's heads", "its matrices, keys and values twice", "none"],
)
def test_copies_of_what_drafts_read_are_planned(algorithm: str, parts: str, numbers: int) -> None:
    """A byte for each number, and four for a column's scale, of which there are 0.2 % of the bytes, 1.5 in a head of
    256."""
    shape = shape_of(flash.target(12, 64), DRAFT)
    wanted = wishes.Wishes(
        path="/m", served_name="m", context_length=16384, algorithm=algorithm, concurrency=1, **DECODING[algorithm]
    )
    with_copies, without = (
        arguments.command_line(wanted, shape, Family.HOPPER, environ={"LING_DRAFT_FP8": one}) for one in (parts, "")
    )
    added = with_copies.plan.private["draft_fp8"] - without.plan.private["draft_fp8"]
    assert added == pytest.approx(numbers, rel=0.003)
    fractions = [float(one.argv[one.argv.index("--mem-fraction-static") + 1]) for one in (with_copies, without)]
    assert fractions[0] < fractions[1] or not parts, "what is made after the pools is no part of them"
