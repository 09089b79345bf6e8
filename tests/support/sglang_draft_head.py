"""NEXTN's head in fp8 as SGLang's logits processor asks for it, interpreted. `RESULT`: a file for JSON."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from sglang.srt.speculative import eagle_worker_v2
from tests.support.sglang_guards import missing

from ling_api.errors import BadInput
from ling_engine.sglang import draft_head, hook_variables

WORDS, HIDDEN = 512, 128


def draft(weight: torch.Tensor, **changed: Any) -> Any:
    head = SimpleNamespace(weight=torch.nn.Parameter(weight), quant_method=UnquantizedEmbeddingMethod())
    runner = SimpleNamespace(model=SimpleNamespace(lm_head=head))
    return SimpleNamespace(**({"draft_runner": runner, "hot_token_id": None} | changed))


def asked(worker: Any, x: torch.Tensor) -> torch.Tensor:
    """What SGLang makes of rows and the draft's head."""
    processor = SimpleNamespace(use_fp32_lm_head=False, use_fp32_lm_head_output=False, rl_on_policy_target=None)
    found: torch.Tensor = LogitsProcessor._compute_lm_head(processor, x, worker.draft_runner.model.lm_head)
    return found


def scores() -> dict[str, Any]:
    torch.manual_seed(0)
    weight = torch.randn(WORDS, HIDDEN).bfloat16()
    kept, plain, worker = weight.clone(), draft(weight.clone()), draft(weight)
    few, many = (torch.randn(rows, HIDDEN).bfloat16() for rows in (6, 17))
    before = asked(worker, few)
    draft_head.give(None, worker)
    first = worker.draft_runner.model.lm_head.quant_method
    draft_head.give(None, worker)
    exact, found = few.double() @ weight.double().T, asked(worker, few)
    return {
        "apart": float((found - exact).norm() / exact.norm()), "type": str(found.dtype),
        "another": not torch.equal(found, before),
        "many": torch.equal(asked(worker, many), asked(plain, many)),
        "kept": torch.equal(weight, kept), "once": worker.draft_runner.model.lm_head.quant_method is first,
        "bytes": [first._small.numel() * first._small.element_size(), WORDS * HIDDEN],
    }  # fmt: skip


def shared() -> dict[str, bool]:
    """By reason, whether the draft's head was left as it is."""
    cases = {
        "another type": draft(torch.randn(WORDS, HIDDEN)),
        "no whole programs": draft(torch.randn(WORDS + 8, HIDDEN).bfloat16()),
        "fewer words": draft(torch.randn(WORDS, HIDDEN).bfloat16(), hot_token_id=torch.tensor([1])),
    }
    for worker in cases.values():
        draft_head.give(None, worker)
    heads = {name: worker.draft_runner.model.lm_head for name, worker in cases.items()}
    return {name: isinstance(head.quant_method, UnquantizedEmbeddingMethod) for name, head in heads.items()}


def placed() -> dict[str, Any]:
    kept = eagle_worker_v2.EagleDraftWorker.init_attention_backends
    draft_head.ensure()
    unasked = eagle_worker_v2.EagleDraftWorker.init_attention_backends is kept
    with mock.patch.dict(os.environ, {hook_variables.DRAFT_HEAD: "fp4"}):
        try:
            draft_head.ensure()
        except BadInput as error:
            refused = str(error)
    with mock.patch.dict(os.environ, {hook_variables.DRAFT_HEAD: hook_variables.FP8}):
        with mock.patch.object(draft_head, "READY", f"{draft_head.READY}_gone"):
            another = missing(draft_head.ensure)
        draft_head.ensure()
    hooked = eagle_worker_v2.EagleDraftWorker.init_attention_backends is not kept
    return {"unasked": unasked, "refused": refused, "another release": another, "hooked": hooked}


def main(argv: Sequence[str]) -> int:
    Path(argv[0]).write_text(json.dumps({"scores": scores(), "shared": shared(), **placed()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
