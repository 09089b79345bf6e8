"""Every switch of SGLang that a recipe of ours may have, with its source and what it gained, as pure tables.

A row is added when a measurement is: `gain` is the ratio of step times with and without it, as a 95 % interval; what
was measured together has the same interval.
`verified` is where it ran for us; `source-only` = taken from the named source and accepted by the pinned SGLang's own
argument parser, no more. Sources: *cookbook* = SGLang's cookbook page of Ling-3.0-flash; *batch-1 report* = LMSYS,
"Chasing the Batch-1 Floor: Ling-3.0-flash Speculative Decode on Blackwell", 2026-08-21; files are of sglang 0.5.23.
"""

from __future__ import annotations

from typing import Final

from ling_engine.decoding import DSPARK, NEXTN

from .families import Family
from .our_switches import OURS
from .switch import GPUS, H200, Switch

_ALWAYS: Final = (
    Switch(name="--trust-remote-code", source="cookbook", verified=H200),
    Switch(
        name="--disable-radix-cache",
        source="batch-1 report: a prefix cache costs 3 to 5 KDA states a request, and work in every step",
        verified=H200,
    ),
    Switch(
        name="--enable-cudagraph-gc",
        source="runner/base_cuda_graph_runner.py: two of three collections around each capture go; 4.7 -> 1.4 s",
        verified=H200,
        families=GPUS,
    ),
    Switch(
        name="--device",
        value="cuda",
        source="utils/common.py: it looks for a GPU else, and a check has none",
        verified=H200,
        families=GPUS,
    ),
    Switch(
        name="TRITON_CACHE_AUTOTUNING",
        value="1",
        source="layers/attention/fla/kda.py: two kernels are tuned anew in every process without it; 4.9 -> 0.25 s",
        verified=H200,
    ),
    Switch(
        name="SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK",
        value="0",
        source="distributed/bootstrap.py: it takes the memory of the other engine of the slot for a fault and ends",
        verified=H200,
    ),
    Switch(
        name="SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
        value="0",
        source="entrypoints/http_server.py: /health would generate a token, in front of a user's request",
        verified=H200,
    ),
    Switch(
        name="--decode-log-interval",
        value="40",
        source="observability/metrics_reporter.py: the server's accept length is brought up to date by this line",
        verified=H200,
    ),
)
# Measured together, beside tables that both had: fa3 and one copy for NEXTN; for DSPARK these and a round's inputs made
# once, and pages of one token.
_NEXTN_GAIN: Final = (0.903, 0.961)
_DSPARK_GAIN: Final = (0.805, 0.896)
_HOPPER: Final = (
    Switch(
        name="--attention-backend",
        value="fa3",
        source="SGLang's own choice on Hopper",
        verified=H200,
        numerics="scores are summed in another order than on Triton's: rounding",
        gain=_NEXTN_GAIN,
        families=(Family.HOPPER,),
    ),
    Switch(
        name="--disable-chunked-prefix-cache",
        source="models/deepseek_common/attention_backend_handler.py: behind 8,192 tokens a piece of a prompt would "
        "expand keys and values of the whole text, 3.9 GB at 131,072 tokens, which no plan has",
        families=(Family.HOPPER,),
    ),
)
_POLLS_GAIN: Final = (0.827, 0.969)  # without drafts
_LOOP: Final = (
    Switch(
        name="--scheduler-recv-interval",
        value="4",
        source="managers/scheduler_components/recv_skipper.py: requests are looked for in every fourth step, which all "
        "ranks are told; one that comes meanwhile waits up to three steps more",
        verified=H200,
        gain=_POLLS_GAIN,
        families=GPUS,
    ),
    Switch(
        name="SGLANG_SCHEDULER_RECV_SKIPPER_WEIGHT_NONE",
        value="4",
        source="environ.py: in every turn where nothing is computed",
        verified=H200,
        gain=_POLLS_GAIN,
        families=GPUS,
    ),
    Switch(
        name="--bf16-gemm-backend",
        value="gemv",
        source="kernels/ops/gemm/hopper_bf16_gemv.py: one row by a kernel of its own; for all, which share weights",
        verified=H200,
        gain=(0.881, 0.983),
        families=(Family.HOPPER,),
        quantizations=("",),
        numerics="sums in another order",
        by_rows=True,
    ),
)
_GRAPHS: Final = (
    Switch(
        name="SGLANG_OPT_CUDA_GRAPH_FILL_FAST_PATH",
        value="1",
        source="environ.py: a graph's inputs are copied by one launch, and nothing is reset where nothing is padded",
        verified=H200,
        gain=_NEXTN_GAIN,
        families=GPUS,
    ),
)
_PAGES: Final = (
    Switch(
        name="--page-size",
        value="16",
        source="sglang#33579: with pages of one token a request at its full context can write into another's cache",
        verified=H200,
        families=(Family.HOPPER,),
        algorithms=(DSPARK,),
    ),
)
_BLACKWELL: Final = (
    Switch(name="--attention-backend", value="trtllm_mla", source="batch-1 report", families=(Family.BLACKWELL,)),
    Switch(
        name="--page-size",
        value="64",
        source="arg_groups/overrides.py: trtllm_mla takes pages of 32 or 64",
        families=(Family.BLACKWELL,),
    ),
    Switch(
        name="--flashinfer-allreduce-fusion-backend",
        value="auto",
        source="batch-1 report",
        families=(Family.BLACKWELL,),
        least_tp=2,
        numerics="sums of ranks in another order",
    ),
)
_SPECULATION: Final = (
    Switch(
        name="SGLANG_OPT_FUSED_KDA_VERIFY",
        value="1",
        source="batch-1 report; layers/attention/linear/kda_backend.py",
        verified=H200,
        families=GPUS,
        algorithms=(NEXTN, DSPARK),
        numerics="one kernel instead of several: rounding",
    ),
    Switch(
        name="SGLANG_ENABLE_METADATA_GLUE_GRAPH",
        value="1",
        source="environ.py: attention's metadata in a graph of its own; SGLang turns it off for DSPARK itself",
        verified=H200,
        families=GPUS,
        algorithms=(NEXTN,),
    ),
    Switch(
        name="SGLANG_RAGGED_VERIFY_MODE",
        value="static",
        source="batch-1 report; at small batches every draft is verified, and no confidence head is built",
        verified=H200,
        algorithms=(DSPARK,),
    ),
    *(
        Switch(
            name=name,
            value="1",
            source=f"environ.py: {what}",
            verified=H200,
            gain=_DSPARK_GAIN,
            families=GPUS,
            algorithms=(DSPARK,),
        )
        for name, what in (
            ("SGLANG_OPT_DSV41_DSPARK_MID_FOLD", "the draft's graph writes its tokens where they are verified"),
            ("SGLANG_OPT_DSV41_DSPARK_PREPARE_INPUTS_ONCE", "a round's inputs are made by one launch"),
            ("SGLANG_OPT_DSV41_DSPARK_SKIP_PREFILLED_INPUTS", "what was copied for the plan is not copied again"),
        )
    ),
    Switch(
        name="--enable-linear-replayssm-spec",
        source="cookbook: replays a round instead of keeping every step's state",
        verified=H200,
        families=GPUS,
        algorithms=(DSPARK,),
        numerics="the state is projected from records: rounding",
    ),
    Switch(
        name="SGLANG_DSPARK_NVLINK_VOCAB_GATHER",
        value="0",
        source="environ.py: the gather by NVLink multicast; a fault in it can take the host's GPUs down for others",
        verified=H200,
        algorithms=(DSPARK,),
    ),
)
_FP8: Final = (
    Switch(
        name="--ep-size",
        value="{tp}",
        source="cookbook: 768 columns of an expert cannot be cut into blocks of 128 for four ranks",
        quantizations=("fp8",),
        families=GPUS,
        least_tp=2,
    ),
)
_CPU: Final = tuple(
    Switch(
        name=name, value=value, source="SGLang's classes in the Triton interpreter: for tests", families=(Family.CPU,)
    )
    for name, value in (
        ("--device", "cpu"),
        ("--attention-backend", "triton"),
        ("SGLANG_MAMBA_CONV_DTYPE", "float32"),
        ("SGLANG_FORCE_STREAM_INTERVAL", "1"),
    )
)
SWITCHES: Final = (*_ALWAYS, *_HOPPER, *_LOOP, *_GRAPHS, *_PAGES, *_BLACKWELL, *_SPECULATION, *OURS, *_FP8, *_CPU)
