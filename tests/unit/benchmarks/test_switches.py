"""Switches of the batch-1 path: which calls are compared, what an interval says, and what a profile is made into."""

from __future__ import annotations

import pytest
from benchmarks.gpu import switch_table, trace
from benchmarks.gpu.switches import active_bytes
from tests.support import flash

from ling_engine.sglang import arguments, wishes
from ling_engine.sglang.families import Family
from ling_engine.sglang.shape import shape_of

OURS = {"LING_FEW_ROWS": "scores,choice,experts,state,verify,products,replay,context"}
SHAPE = shape_of(flash.target(), flash.draft())


def ours(mode: str, tp: int = 1) -> arguments.Arguments:
    decoding = {"NEXTN": {"num_steps": 5, "num_draft_tokens": 6}, "DSPARK": {"draft": "/m/dspark"}}.get(mode, {})
    one = wishes.Wishes(
        path="/m", served_name="ling", context_length=4096, algorithm=mode, concurrency=1, tp=tp, **decoding
    )  # type: ignore[arg-type]
    return arguments.command_line(one, SHAPE, Family.HOPPER)


def calls(mode: str, tp: int = 1, tuned: str = "") -> dict[str, switch_table.Call]:
    called = ours(mode, tp)
    return {one.name: one for one in switch_table.calls(mode, tp, called.argv, called.env, tuned)}


def test_a_recipe_that_has_our_kernels_is_compared_with_itself_without_them() -> None:
    found = calls("DSPARK", tuned="/tables")
    bare, shipped = found["recipe without our kernels"], found["recipe and tuned MoE"]
    assert bare.argv == shipped.argv
    assert shipped.env.items() - bare.env.items() == {
        ("LING_FEW_ROWS", "scores,choice,experts,verify,products,replay,context"), ("LING_ACCEPT_IN_GRAPH", "1"),
        ("LING_DRAFT_FP8", "head,markov,layers"),
    }  # fmt: skip
    polls = found["recipe without rare polls"]
    assert set(switch_table.flags(shipped.argv)) - set(switch_table.flags(polls.argv)) == {
        ("--scheduler-recv-interval", "4"),
    }  # fmt: skip
    assert "recipe without a draft in fp8" not in calls("None"), "it has none"


@pytest.mark.parametrize("mode", ["None", "NEXTN", "DSPARK"])
def test_all_decode_alike_and_differ_in_switches_alone(mode: str) -> None:
    found = calls(mode)
    more = ["recipe and hooks", "recipe and hooks but the experts"]
    more += ["recipe without our kernels", *(["recipe without a draft in fp8"] if mode != "None" else [])]
    more += ["recipe without acceptance in the graph"] if mode == "DSPARK" else []
    more += ["recipe without rare polls", "recipe without GEMV"]
    assert list(found)[: 3 + len(more)] == ["cookbook", "recipe", *more, "all"]
    assert found["recipe"].argv == ours(mode).argv
    shared = [name for name in ("--speculative-algorithm", "--max-total-tokens", "--model-path", "--context-length")
              if name in found["recipe"].argv]  # fmt: skip
    for one in found.values():
        values = dict(flag[:2] for flag in switch_table.flags(one.argv) if len(flag) > 1)
        assert {name: values[name] for name in shared} == {
            name: dict(flag[:2] for flag in switch_table.flags(found["recipe"].argv) if len(flag) > 1)[name]
            for name in shared
        }
        assert len({flag[0] for flag in switch_table.flags(one.argv)}) == len(switch_table.flags(one.argv)), one.name


def test_the_cookbooks_call_has_none_of_our_switches() -> None:
    argv = calls("NEXTN")["cookbook"].argv
    assert not {"--disable-radix-cache", "--attention-backend", "--enable-cudagraph-gc"} & set(argv)
    assert "SGLANG_OPT_FUSED_KDA_VERIFY" not in calls("NEXTN")["cookbook"].env
    assert "--enable-linear-replayssm-spec" in calls("DSPARK")["cookbook"].argv, "the cookbook has it"


def test_a_trial_is_alone_but_in_all() -> None:
    found = calls("NEXTN", tuned="/tables")
    assert set(found["bf16 router"].argv) - set(found["cookbook"].argv) == {
        "--json-model-override-args", '{"router_dtype": "bf16"}',
    }  # fmt: skip
    assert found["tuned MoE"].env["SGLANG_MOE_CONFIG_DIR"] == "/tables"
    shipped = found["recipe and tuned MoE"]
    assert (shipped.argv, shipped.env["SGLANG_MOE_CONFIG_DIR"]) == (found["recipe"].argv, "/tables")
    kernels = found["recipe and hooks"]
    assert (kernels.argv, kernels.env) == (shipped.argv, shipped.env | OURS | {"LING_DRAFT_FP8": "head"})
    assert "LING_DRAFT_FP8" not in calls("None")["recipe and hooks"].env
    folded = calls("DSPARK")["recipe and hooks"].env
    assert (folded["LING_ACCEPT_IN_GRAPH"], folded["SGLANG_OPT_DSV41_DSPARK_POST_FOLD"]) == ("1", "1")
    graph = calls("DSPARK")["acceptance in the graph"]
    assert "--disable-radix-cache" in graph.argv, "or it keeps nothing"
    parts = {one.removeprefix("few rows: ") for one in calls("None") if one.startswith("few rows: ")}
    assert parts == {"choice", "experts", "state"}, "a plain step meets no others"
    verified = found["few rows: verify"].env
    assert verified["SGLANG_OPT_FUSED_KDA_VERIFY"] == "1", "or SGLang does not ask for that kernel"
    assert found["few rows: choice"].env == found["cookbook"].env | {"LING_FEW_ROWS": "choice"}
    together = found["all"]
    assert together.env["SGLANG_MOE_CONFIG_DIR"] == "/tables"
    assert {"--bf16-gemm-backend", "--disable-radix-cache"} <= set(together.argv)
    assert together.argv[together.argv.index("--linear-replayssm-cache-len") + 1] == "16"
    assert "NCCL instead of the custom all-reduce" in calls("None", tp=2)
    assert "NCCL instead of the custom all-reduce" not in calls("None")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.8, 0.99, "kept"), (0.9, 1.01, "no difference seen"), (1.01, 1.1, "costs")],
)
def test_what_an_interval_says(low: float, high: float, said: str) -> None:
    assert switch_table.verdict(low, high) == said
    assert switch_table.table([("NEXTN", "x", 4.5, 0.9, low, high, 0.8)]).endswith(
        f"{low:.3f}, {high:.3f}] | 0.800 | {said} |\n"
    )


def event(name: str, begin: float, took: float, cat: str = "kernel") -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": took}


EVENTS = [
    event("fused_moe_kernel", 0, 100),
    event("fused_recurrent_kda_fwd_kernel", 100, 40),
    event("nvjet_tst_64x8", 150, 30),
    event("nvjet_tst_64x8", 160, 30),  # beside the one before
    event("Memcpy DtoH (Device -> Pinned)", 200, 10, "gpu_memcpy"),
    event("aten::mm", 0, 500, "cpu_op"),
]

ORDER = [(0, 30, "nvjet_tst_64x8"), (10, 30, "nvjet_tst_64x8")]  # of five kernels the second two


def test_a_steps_time_by_kind_and_what_nobody_used() -> None:
    found = {one.kind: one for one in trace.parts(EVENTS, 2, 110)}
    assert (found["experts"].us, found["KDA"].us, found["matrix products"].us) == (50, 20, 30)
    assert found["matrix products"].kernels == 1
    assert found[trace.GAPS].us == pytest.approx(110 - 190 / 2), "of a step without the profiler"
    assert {one.kind: one for one in trace.parts(EVENTS, 2, 90)}[trace.GAPS].us == 0, "not less than nothing"
    assert trace.longest(EVENTS, 2)[0] == ("fused_moe_kernel", 50, 0.5)
    assert trace.parts([], 4, 10) == []
    assert trace.order(EVENTS, 2) == ORDER
    assert trace.order([], 4) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_fwd_grouped_kernel_stage1", "MLA"),
        ("kda_fused_chain_verify_kernel", "KDA"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "all-reduce"),
        ("RMSNormKernel", "norms"),
        ("vectorized_elementwise_kernel", trace.REST),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert trace.kind_of(name) == kind


def test_the_picture_is_svg_with_a_bar_for_each_kind() -> None:
    found = trace.picture("a < b", trace.parts(EVENTS, 2, 110))
    assert found.count("<rect") == 1 + len(trace.parts(EVENTS, 2, 110))
    assert "a &lt; b" in found
    assert found.startswith("<svg")
    assert found.endswith("</svg>\n")


def test_the_bytes_that_a_plain_step_reads() -> None:
    """5.1 of 124 billion parameters are active, as the model's page says; bf16, without the embedding's row."""
    assert active_bytes(SHAPE) == pytest.approx(2 * 5.1e9, rel=0.12)
