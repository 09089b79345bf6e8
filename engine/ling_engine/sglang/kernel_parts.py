"""Which of our kernels an environment asks for, and the functions of SGLang that each stands around. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "LING_FEW_ROWS"  # which parts, with commas between
VERIFY: Final = "sglang.kernels.ops.attention.linear.fused_kda_conv_recurrent_verify"
TARGETS: Final = {
    "scores": "sglang.srt.models.bailing_moe_v3.BailingMoEGate.forward",
    "choice": "sglang.srt.layers.moe.topk.select_experts",
    "experts": "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts",
    "state": "sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent._select_recurrent_launch_config",
    "verify": f"{VERIFY}.fused_kda_conv_gating_verify",
}


def wanted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The parts that VARIABLE names. Raises BadInput for one that there is not."""
    parts = tuple(part for part in environ.get(VARIABLE, "").split(",") if part)
    if unknown := set(parts) - TARGETS.keys():
        raise BadInput(f"{VARIABLE}: no part {sorted(unknown)[0]!r}; write some of {','.join(TARGETS)}")
    return parts
