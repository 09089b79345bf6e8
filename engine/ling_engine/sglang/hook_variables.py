"""The variables that ask for hooks of ours, what each may say, and what belongs to it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput
from ling_engine.decoding import DSPARK, NEXTN

if TYPE_CHECKING:
    from collections.abc import Mapping

FEW_ROWS: Final = "LING_FEW_ROWS"  # parts, with commas between
VERIFY: Final = "sglang.kernels.ops.attention.linear.fused_kda_conv_recurrent_verify"
REPLAY: Final = "sglang.kernels.ops.attention.linear.kda_replayssm_spec_decode"
TARGETS: Final = {  # by part, the function of SGLang that its hook stands around
    "scores": "sglang.srt.models.bailing_moe_v3.BailingMoEGate.forward",
    "choice": "sglang.srt.layers.moe.topk.select_experts",
    "experts": "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts",
    "state": "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent._select_recurrent_launch_config",
    "verify": f"{VERIFY}.fused_kda_conv_gating_verify",
    "products": "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
    "replay": f"{REPLAY}.commit_kda_replayssm_spec_all_layers",
    "context": "sglang.kernels.ops.speculative.dspark.fused_kv_write.fused_kv_norm_rope_write",
}
ACCEPT_IN_GRAPH: Final = "LING_ACCEPT_IN_GRAPH"
# What SGLang reads when it builds that epilogue: one kernel for acceptance, and what else the graph may do.
ACCEPTANCE: Final = {
    "SGLANG_DSPARK_FUSED_ACCEPT_TAIL": "1",
    "SGLANG_OPT_DSV41_DSPARK_POST_FOLD": "1",
    "SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH": "1",
}
DRAFT_FP8: Final = "LING_DRAFT_FP8"  # parts, with commas between
DRAFTS: Final = {NEXTN: ("head",), DSPARK: ("head", "markov", "layers")}  # parts by who has them


def few_rows(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The parts that FEW_ROWS names. Raises BadInput for one that there is not."""
    return _parts(environ, FEW_ROWS, tuple(TARGETS))


def draft_fp8(environ: Mapping[str, str], algorithm: str = DSPARK, tp: int = 1) -> tuple[str, ...]:
    """The parts that DRAFT_FP8 names, of a draft of that kind: with DSPARK on one rank only. Raises BadInput for one
    that it has not."""
    return _parts(environ, DRAFT_FP8, () if algorithm == DSPARK and tp > 1 else DRAFTS.get(algorithm, ()))


def accept_in_graph(environ: Mapping[str, str]) -> bool:
    """Empty, it takes the hook out of a recipe that has it. Raises BadInput for a value that says nothing."""
    said = environ.get(ACCEPT_IN_GRAPH, "")
    if said not in ("", "1"):
        raise BadInput(f"{ACCEPT_IN_GRAPH} {said!r}: write 1, or leave it empty")
    return bool(said)


def _parts(environ: Mapping[str, str], variable: str, known: tuple[str, ...]) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part for part in environ.get(variable, "").split(",") if part))
    if unknown := set(parts) - set(known):
        instead = f"write some of {','.join(known)}" if known else "leave it out"
        raise BadInput(f"{variable}: no part {sorted(unknown)[0]!r}; {instead}")
    return parts
