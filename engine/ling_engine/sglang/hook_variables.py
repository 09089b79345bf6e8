"""The variables that ask for hooks of ours, what each may say, and what belongs to it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

FEW_ROWS: Final = "LING_FEW_ROWS"  # parts, with commas between
VERIFY: Final = "sglang.kernels.ops.attention.linear.fused_kda_conv_recurrent_verify"
TARGETS: Final = {  # by part, the function of SGLang that its hook stands around
    "scores": "sglang.srt.models.bailing_moe_v3.BailingMoEGate.forward",
    "choice": "sglang.srt.layers.moe.topk.select_experts",
    "experts": "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts",
    "state": "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent._select_recurrent_launch_config",
    "verify": f"{VERIFY}.fused_kda_conv_gating_verify",
}
ACCEPT_IN_GRAPH: Final = "LING_ACCEPT_IN_GRAPH"
# What SGLang reads when it builds that epilogue: one kernel for acceptance, and what else the graph may do.
ACCEPTANCE: Final = {
    "SGLANG_DSPARK_FUSED_ACCEPT_TAIL": "1",
    "SGLANG_OPT_DSV41_DSPARK_POST_FOLD": "1",
    "SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH": "1",
}
DRAFT_HEAD: Final = "LING_DRAFT_HEAD"
FP8: Final = "fp8"


def few_rows(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The parts that FEW_ROWS names. Raises BadInput for one that there is not."""
    parts = tuple(part for part in environ.get(FEW_ROWS, "").split(",") if part)
    if unknown := set(parts) - TARGETS.keys():
        raise BadInput(f"{FEW_ROWS}: no part {sorted(unknown)[0]!r}; write some of {','.join(TARGETS)}")
    return parts


def accept_in_graph(environ: Mapping[str, str]) -> bool:
    """Raises BadInput for a value that says nothing."""
    return _asked(environ, ACCEPT_IN_GRAPH, "1")


def draft_head(environ: Mapping[str, str]) -> bool:
    """Raises BadInput for a value that says nothing."""
    return _asked(environ, DRAFT_HEAD, FP8)


def _asked(environ: Mapping[str, str], variable: str, value: str) -> bool:
    """Whether it has the one value that asks for a hook; empty, it takes the hook out of a recipe that has it."""
    said = environ.get(variable, "")
    if said not in ("", value):
        raise BadInput(f"{variable} {said!r}: write {value}, or leave it empty")
    return bool(said)
