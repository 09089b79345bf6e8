"""The tuner of the MoE kernel with the real kernel, interpreted; its tables read by SGLang. `FOLDER MODEL RESULT`.

Writes JSON: our name and SGLang's for each kind of table, the table as SGLang read it, and what was timed.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks import moe_kernel, moe_plan, tune_moe
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as stock
from sglang.srt.plugins import load_plugins

GPU = "NVIDIA H200"
HIDDEN, CHOSEN = 64, 3
TINY = "9x32"


def names() -> list[list[str]]:
    """[ours, SGLang's] of bf16 and fp8."""
    found = []
    for case in moe_plan.cases("513x768,512x192,129x768:fp8"):
        layer = case.layer
        fp8 = ("fp8_w8a8", [128, 128]) if layer.quantization else (None, None)
        found.append([layer.table(GPU), stock.get_config_file_name(layer.experts, layer.columns, *fp8)])
    return found


def aligned(ids: torch.Tensor, block: int, experts: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What SGLang's CUDA kernel makes: places in `ids` by expert, each expert's filled up to whole blocks."""
    flat, places, owners = ids.flatten(), [], []
    for expert in range(experts):
        mine = (flat == expert).nonzero().flatten().tolist()
        blocks = -(-len(mine) // block)
        places += mine + [flat.numel()] * (blocks * block - len(mine))
        owners += [expert] * blocks
    whole = torch.tensor([len(places)], dtype=torch.int32)
    return torch.tensor(places, dtype=torch.int32), torch.tensor(owners, dtype=torch.int32), whole


def main(argv: Sequence[str]) -> int:
    folder, model, result = map(Path, argv)
    load_plugins()
    moe_kernel.boot(model, "--dtype", "float32", device="cpu")
    told: dict[str, Any] = {}
    folder.mkdir()
    with (
        mock.patch.object(stock, "get_device_name", lambda: GPU),
        mock.patch.object(fused_moe, "moe_align_block_size", aligned),
    ):
        told["names"] = names()
        where = folder / "configs" / f"triton_{stock.triton.__version__.replace('.', '_')}"
        (case,) = moe_plan.cases(TINY)
        few = [one for one in moe_plan.configurations(case, 1) if one["BLOCK_SIZE_K"] == 64][:2]
        with mock.patch.object(moe_plan, "configurations", lambda *_: few):
            tune_moe.tune(
                [case], [1, 4], folder, time.monotonic() + 300,
                lambda one: moe_kernel.Kernel(one, hidden=HIDDEN, chosen=CHOSEN, device="cpu", dtype=torch.float32),
                lambda one: where / one.layer.table(GPU).replace(".json", ",dtype=float32.json"),
            )  # fmt: skip
        told["timed"] = json.loads((folder / f"timed-{TINY}.json").read_text())
        (file,) = where.iterdir()
        told["written"] = json.loads(file.read_text())
        with mock.patch.dict(os.environ, {"SGLANG_MOE_CONFIG_DIR": str(folder)}):
            stock.get_moe_configs.cache_clear()
            shapes = ((9, 64, HIDDEN), (9, HIDDEN, 32))
            told["read"] = {rows: stock.try_get_optimal_moe_config(*shapes, CHOSEN, "float32", rows) for rows in (1, 4)}
            told["read"]["64"] = stock.try_get_optimal_moe_config(*shapes, CHOSEN, "float32", 64)
            told["default"] = stock.get_default_config(64, 9, 32, HIDDEN, CHOSEN, "float32", False)
    result.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
