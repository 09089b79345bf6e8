"""Our kernels of few rows beside SGLang's own functions, interpreted. `MODEL RESULT`: a checkpoint, a file for JSON."""

import functools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks import few_rows_layer, moe_kernel, moe_plan
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from sglang.srt.plugins import load_plugins
from tests.support.sglang_guards import missing
from tests.support.sglang_moe import GPU, aligned

from ling_engine.sglang import few_rows

TINY = "17x32"
HIDDEN = 64
LIMIT = 0.002  # of gate and up: cuts most of what these weights make


def layer(limit: float | None = None) -> few_rows_layer.Layer:
    (case,) = moe_plan.cases(TINY)
    return few_rows_layer.Layer(case, hidden=HIDDEN, chosen=3, device="cpu", dtype=torch.bfloat16, limit=limit)


def plainly(*args: Any, **named: Any) -> torch.Tensor:
    """What SGLang registers as an operator of CUDA alone: the same without a name."""
    return fused_moe.fused_experts_impl(*args[:7], False, *args[7:], **named)


def ensured(targets: dict[str, str] = few_rows.TARGETS) -> None:
    with (
        mock.patch.dict(os.environ, {few_rows.VARIABLE: ",".join(targets)}),
        mock.patch.dict(few_rows.TARGETS, targets),
    ):
        few_rows.ensure()


def hooked(one: few_rows_layer.Layer, many: Sequence[int]) -> dict[int, dict[str, list[bool]]]:
    """By rows and part: whether SGLang's own function gives bitwise what our hook does, before and after."""
    found: dict[int, dict[str, list[bool]]] = {rows: {} for rows in many}

    def alike(rows: int, x: torch.Tensor, wanted: Any) -> None:
        logits, chosen, out = wanted
        got = {
            "scores": torch.equal(one.scores(x, ours=False), logits),
            "choice": torch.equal(one.choice(x, logits, ours=False).topk_weights, chosen.topk_weights),
            "experts": torch.equal(one.experts(x, chosen, ours=False), out),
        }
        for part, same in got.items():
            found[rows].setdefault(part, []).append(same)

    inputs = {rows: one.calls(rows)[0] for rows in many}
    wanted = {}
    for rows, x in inputs.items():
        few = rows <= few_rows.ROWS  # what our hook gives; for more rows SGLang's own, which it is to leave alone
        logits = one.scores(x, ours=few)
        chosen = one.choice(x, logits, ours=few)
        wanted[rows] = logits, chosen, one.experts(x, chosen, ours=few)
        alike(rows, x, wanted[rows])
    ensured()
    ensured()  # once is enough
    for rows, x in inputs.items():
        alike(rows, x, wanted[rows])
    return found


def main(argv: Sequence[str]) -> int:
    model, result = map(Path, argv)
    load_plugins()
    moe_kernel.boot(model, "--dtype", "float32", device="cpu")
    told: dict[str, Any] = {}
    with (
        mock.patch.object(fused_moe, "moe_align_block_size", aligned),
        mock.patch.object(fused_moe, "outplace_fused_experts", plainly),
        mock.patch.object(fused_moe_triton_config, "get_device_name", lambda: GPU),
    ):
        for name, limit in (("free", None), ("limited", LIMIT)):
            one = layer(limit)
            told[name] = {rows: one.apart(rows) for rows in (1, 2, 6, 9, 16)}
        told["hooked"] = hooked(layer(), (6, 17))
        told["another release"] = missing(
            functools.partial(ensured, {**few_rows.TARGETS, "choice": f"{few_rows.__name__}.gone.chosen"})
        )
    result.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
