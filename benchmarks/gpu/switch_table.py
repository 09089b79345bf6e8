"""Every switch of SGLang's batch-1 path that is documented for this architecture, as a change of the cookbook's call.

The cookbook's call is SGLang as its page of the model says, with sizes for one request; a trial adds to it, one switch
at a time; `recipe` is ours as it is shipped, `all` is ours and every trial of that mode that adds to it. Pure.
Names and defaults are those of sglang 0.5.23: `environ.py`, `arg_groups/fields`; a test asks the pinned release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ling_engine.sglang import hook_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NONE, NEXTN, DSPARK = "None", "NEXTN", "DSPARK"
TUNED, TUNED_RECIPE = "tuned MoE", "recipe and tuned MoE"  # as it is shipped once the tables are
FEW, IN_GRAPH, DRAFT = "few rows", "acceptance in the graph", "draft in fp8"
HOOKS_RECIPE = "recipe and hooks"  # with what we put in the place of SGLang's functions, and tables where there are any
LEAN_RECIPE = "recipe and hooks but the experts"
# Switches that our recipe has and a call has not, by the call's name; with tables where there are any.
LESS: Final = {
    f"recipe without {what}": _words(names)
    for what, names in {
        "our kernels": f"{hook_variables.FEW_ROWS} {hook_variables.ACCEPT_IN_GRAPH} {hook_variables.DRAFT_FP8}",
        "a draft in fp8": hook_variables.DRAFT_FP8,
        "acceptance in the graph": f"{hook_variables.ACCEPT_IN_GRAPH} {' '.join(hook_variables.ACCEPTANCE)}",
        "rare polls": "--scheduler-recv-interval SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_NONE",
        "GEMV": "--bf16-gemm-backend",
    }.items()
}
SPECULATIVE: Final = (NEXTN, DSPARK)
# What belongs to the sizes of a call and to what it is at all; everything else of our recipe is a switch.
KEPT: Final = _words(
    "--model-path --served-model-name --context-length --tp-size --dtype --random-seed --max-running-requests "
    "--max-total-tokens --chunked-prefill-size --max-prefill-tokens --mem-fraction-static --cuda-graph-max-bs-decode "
    "--cuda-graph-bs-decode --speculative-algorithm --speculative-num-steps --speculative-eagle-topk "
    "--speculative-num-draft-tokens --speculative-draft-model-path --speculative-dspark-block-size --trust-remote-code "
    "--device --decode-log-interval --max-mamba-cache-size"
)
# The cookbook's own switches: a DSPARK round is replayed.
COOKBOOK: Final = {DSPARK: ("--enable-linear-replayssm-spec", "--linear-replayssm-cache-len")}
COOKBOOK_ENV: Final = {"SGLANG_DSPARK_NVLINK_VOCAB_GATHER": "0", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`with_recipe`: whether it may stand beside our recipe's switches, some of which may have it already."""

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = (NONE, NEXTN, DSPARK)
    least_tp: int = 1
    numerics: str = ""
    with_recipe: bool = False


# Where a part of our kernels for few rows meets something; the cookbook's NEXTN replays no round.
_MET: Final = {
    "scores": (DSPARK,),
    "state": (NONE,),
    "verify": SPECULATIVE,
    "products": SPECULATIVE,
    "replay": (DSPARK,),
    "context": (DSPARK,),
}
# Without it SGLang verifies by other kernels; compare it with the trial of that switch alone.
_VERIFIED: Final = {"SGLANG_OPT_FUSED_KDA_VERIFY": "1"}
_ROUNDING: Final = "rounding; routing, where two experts tie"
_HOOKS: Final = (
    Trial(
        name=FEW, env={hook_variables.FEW_ROWS: ",".join(hook_variables.TARGETS)}, numerics=_ROUNDING, with_recipe=True
    ),
    Trial(
        name=IN_GRAPH,
        argv=("--disable-radix-cache",),  # without it the graph keeps nothing
        env={"SGLANG_RAGGED_VERIFY_MODE": "static", hook_variables.ACCEPT_IN_GRAPH: "1", **hook_variables.ACCEPTANCE},
        modes=(DSPARK,),
        with_recipe=True,
    ),
    *(
        Trial(
            name=f"{DRAFT} of {mode}",
            env={hook_variables.DRAFT_FP8: ",".join(parts)},
            modes=(mode,),
            numerics="other drafts, the same tokens",
            with_recipe=True,
        )
        for mode, parts in hook_variables.DRAFTS.items()
    ),
)
# Those with kernels that are compiled at a first start for a minute and more come last: what starts together waits.
TRIALS: Final = (
    *_HOOKS,
    *(
        Trial(
            name=f"{FEW}: {part}",
            env={hook_variables.FEW_ROWS: part} | (_VERIFIED if part == "verify" else {}),
            modes=_MET.get(part, (NONE, *SPECULATIVE)),
            numerics=_ROUNDING,
        )
        for part in hook_variables.TARGETS
    ),
    *(
        Trial(
            name=f"{DRAFT}: {part}",
            env={hook_variables.DRAFT_FP8: part},
            modes=(DSPARK,),
            numerics="other drafts, the same tokens",
        )
        for part in hook_variables.DRAFTS[DSPARK]
    ),
    Trial(
        name="greedy drafts",
        env={"SGLANG_RAGGED_VERIFY_MODE": "static", "SGLANG_DSPARK_USE_GREEDY_DRAFT": "1"},
        modes=(DSPARK,),
        numerics="requests with a temperature accept fewer drafts",
        with_recipe=True,
    ),
    Trial(name="no prefix cache", argv=("--disable-radix-cache",)),
    Trial(
        name="graph inputs in one copy",
        env={"SGLANG_OPT_CUDA_GRAPH_FILL_FAST_PATH": "1"},
    ),
    Trial(
        name="a round's inputs made once",
        env={
            "SGLANG_RAGGED_VERIFY_MODE": "static",
            "SGLANG_OPT_DSV41_DSPARK_MID_FOLD": "1",
            "SGLANG_OPT_DSV41_DSPARK_PREPARE_INPUTS_ONCE": "1",
            "SGLANG_OPT_DSV41_DSPARK_SKIP_PREFILLED_INPUTS": "1",
        },
        modes=(DSPARK,),
    ),
    Trial(
        name="glued replay without a view",
        env={"SGLANG_ENABLE_METADATA_GLUE_GRAPH": "1", "SGLANG_OPT_SKIP_GLUED_REPLAY_VIEW": "1"},
        modes=(NONE, NEXTN),
        with_recipe=True,
    ),
    Trial(name="MLA by Triton: no host sync", argv=("--attention-backend", "triton", "--page-size", "16")),
    Trial(
        name="fused KDA verify",
        env={"SGLANG_OPT_FUSED_KDA_VERIFY": "1"},
        modes=SPECULATIVE,
        numerics="rounding",
    ),
    Trial(name="metadata glue graph", env={"SGLANG_ENABLE_METADATA_GLUE_GRAPH": "1"}, modes=(NEXTN,)),
    Trial(name="every draft verified", env={"SGLANG_RAGGED_VERIFY_MODE": "static"}, modes=(DSPARK,)),
    Trial(
        name="bf16 router",
        argv=("--json-model-override-args", '{"router_dtype": "bf16"}'),
        numerics="routing, where two experts are close",
        with_recipe=True,
    ),
    Trial(
        name="grouped top-k in one Triton kernel",
        env={"SGLANG_OPT_USE_JIT_KERNEL_GROUPED_TOPK": "1"},
        numerics="routing, where two experts tie",
    ),
    Trial(name="bf16 products by GEMV", argv=("--bf16-gemm-backend", "gemv"), numerics="rounding", with_recipe=True),
    Trial(
        name="replayed rounds",
        argv=("--enable-linear-replayssm-spec", "--linear-replayssm-cache-len", "16"),
        modes=(NEXTN,),
        numerics="rounding",
        with_recipe=True,
    ),
    Trial(name="KDA decode: cutedsl", argv=("--linear-attn-decode-backend", "cutedsl"), modes=(NONE,)),
    Trial(name="KDA decode: FlashInfer", argv=("--linear-attn-decode-backend", "flashinfer"), modes=(NONE,)),
    Trial(name="KDA verify: nv_cutedsl", argv=("--linear-attn-verify-backend", "nv_cutedsl"), modes=SPECULATIVE),
    Trial(name="KDA verify: FlashInfer", argv=("--linear-attn-verify-backend", "flashinfer"), modes=SPECULATIVE),
    Trial(
        name="head's product in fp32",
        argv=("--enable-fp32-lm-head",),
        numerics="scores are not rounded to bf16",
    ),
    Trial(
        name="requests looked for every fourth step",
        argv=("--scheduler-recv-interval", "4"),
        env={"SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_NONE": "4"},
        with_recipe=True,
    ),
    Trial(name="inference mode", env={"SGLANG_ENABLE_TORCH_INFERENCE_MODE": "1"}, with_recipe=True),
    Trial(name="no scheduler overlap", argv=("--disable-overlap-schedule",)),
    Trial(name="sleep when idle", argv=("--sleep-on-idle",)),
    Trial(
        name="FlashInfer plans from the host's lengths",
        argv=("--attention-backend", "flashinfer"),
        env={"SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN": "1", "SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR": "1"},
        modes=(NEXTN,),
    ),
    Trial(name="NCCL instead of the custom all-reduce", argv=("--disable-custom-all-reduce",), least_tp=2),
    Trial(name="custom all-reduce, version 1", env={"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"}, least_tp=2),
    Trial(name="all-reduce in one stage", env={"SGLANG_USE_1STAGE_ALLREDUCE": "1"}, least_tp=2),
    Trial(
        name="experts' sum and all-reduce in one",
        argv=("--enable-fused-moe-sum-all-reduce",),
        least_tp=2,
        numerics="sums of ranks in another order",
        with_recipe=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How one engine of a comparison is started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


def flags(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """A command line in flags with their values."""
    found: list[tuple[str, ...]] = []
    for word in argv:
        if word.startswith("--"):
            found.append((word,))
        else:
            found[-1] = (*found[-1], word)
    return found


def cookbook(mode: str, argv: Sequence[str]) -> Call:
    """Our call without our switches."""
    kept = KEPT | set(COOKBOOK.get(mode, ()))
    chosen = [word for flag in flags(argv) if flag[0] in kept for word in flag]
    # Its prefix cache keeps up to five states of a request; one would be too few to start.
    at = chosen.index("--max-mamba-cache-size")
    chosen[at + 1] = str(5 * int(chosen[at + 1]))
    return Call(name="cookbook", argv=tuple(chosen), env=COOKBOOK_ENV)


def added(call: Call, trials: Sequence[Trial], name: str) -> Call:
    """A call with switches; a flag that is there already is replaced."""
    known = {flag[0]: flag for flag in flags(call.argv)}
    env = dict(call.env)
    for trial in trials:
        known |= {flag[0]: flag for flag in flags(trial.argv)}
        env |= trial.env
    return Call(name=name, argv=tuple(word for flag in known.values() for word in flag), env=env)


def less(call: Call, names: frozenset[str], name: str) -> Call:
    """A call without switches."""
    argv = tuple(word for flag in flags(call.argv) if flag[0] not in names for word in flag)
    return Call(name=name, argv=argv, env={one: value for one, value in call.env.items() if one not in names})


def on_fa3(call: Call) -> bool:
    """Whether FlashAttention 3 computes it: SGLang's default on Hopper, and our recipe's."""
    return all(flag[1:] == ("fa3",) for flag in flags(call.argv) if flag[0] == "--attention-backend")


def plainer(call: Call) -> Call:
    """A call where SGLang's default attention does not run (on Hopper FlashAttention 3, a library of its own)."""
    return added(call, [Trial(name="", argv=("--attention-backend", "triton"))], call.name)


def calls(mode: str, tp: int, argv: Sequence[str], env: Mapping[str, str], tuned: str = "") -> list[Call]:
    """The cookbook's first, then ours, with tables, with our hooks, with all, and each trial alone. `tuned`: a folder
    of MoE tables."""
    base, ours = cookbook(mode, argv), Call(name="recipe", argv=tuple(argv), env=env)
    trials = [one for one in TRIALS if mode in one.modes and tp >= one.least_tp]
    tables = [Trial(name=TUNED, env={"SGLANG_MOE_CONFIG_DIR": tuned}, with_recipe=True)] if tuned else []
    trials = [*tables, *trials]
    ours_more = [added(ours, tables, TUNED_RECIPE)] if tuned else []
    hooks = [*tables, *(one for one in _HOOKS if mode in one.modes)]
    lean = Trial(
        name="", env={hook_variables.FEW_ROWS: ",".join(part for part in hook_variables.TARGETS if part != "experts")}
    )
    ours_more += [added(ours, hooks, HOOKS_RECIPE), added(ours, [*hooks, lean], LEAN_RECIPE)]
    whole = added(ours, tables, "")
    ours_more += [less(whole, names, name) for name, names in LESS.items() if names & {*whole.argv, *whole.env}]
    more = [one for one in trials if one.with_recipe]
    alone = [added(base, [one], one.name) for one in trials]
    return [base, ours, *ours_more, added(ours, more, "all"), *alone]


def verdict(low: float, high: float) -> str:
    """What a 95 % interval of the ratio of step times says."""
    if high < 1:
        return "kept"
    return "costs" if low > 1 else "no difference seen"


def table(rows: Sequence[tuple[str, str, float, float, float, float, float]]) -> str:
    """Markdown of (mode, switch, step ms, ratio, low, high, ratio of the fastest)."""
    lines = [
        "| mode | switch | step ms | step / cookbook [95 %] | fastest | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {mode} | {name} | {step:.3f} | {ratio:.3f} [{low:.3f}, {high:.3f}] | {best:.3f} | {verdict(low, high)} |"
        for mode, name, step, ratio, low, high, best in rows
    ]
    return "\n".join(lines) + "\n"
