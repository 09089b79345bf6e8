"""NEXTN's head in fp8: a hook that gives the draft a rounded copy of the head that it shares with the target.

A round of NEXTN reads the head once for each draft and once for the verification, of all that it reads the most. The
target's stays as it is, so tokens do; drafts are guessed with the copy, which is half as many bytes. It is this rank's
own memory: a byte for each word and column of the head.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Final

import torch

from ling_engine.kernels import plans

from . import few_rows, hook_variables, hooking

_log = logging.getLogger(__name__)
_WORKER: Final = "sglang.srt.speculative.eagle_worker_v2"
READY: Final = f"{_WORKER}.EagleDraftWorker.init_attention_backends"  # before the draft's graphs are captured


def ensure(*_: object, **__: object) -> None:
    """In ranks that decode with NEXTN, where it is wanted. Raises BadInput, and PluginMissing where SGLang is another
    one."""
    if hook_variables.draft_head(os.environ) and _WORKER in sys.modules:
        hooking.place("AFTER", READY, give)


def give(_: object, worker: Any, *args: object, **kwargs: object) -> None:
    """Runs after READY. A head that is not what the kernel is for stays as it is."""
    head = worker.draft_runner.model.lm_head
    weight = head.weight.data
    plan = plans.head(weight.shape[1], weight.shape[0])
    known = weight.dtype == torch.bfloat16 and weight.is_contiguous()
    if plan is None or not known or worker.hot_token_id is not None:
        _log.info("draft_head=shared words=%d hidden=%d type=%s", *weight.shape, weight.dtype)
        return
    if not isinstance(head.quant_method, Rounded):
        head.quant_method = Rounded(weight, plan)
        torch.cuda.empty_cache()  # graphs are captured next, and their memory is planned
    _log.info("draft_head=%s words=%d hidden=%d", hook_variables.FP8, *weight.shape)


class Rounded:
    """What SGLang asks for scores instead of multiplying with the head itself; more rows than a step's it multiplies as
    SGLang would."""

    def __init__(self, weight: torch.Tensor, plan: plans.Plan) -> None:
        from ling_engine.kernels import head

        self._plan = plan
        self._small, self._scales = head.rounded(weight)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, words]."""
        if bias is None and few_rows.few(x):
            from ling_engine.kernels import head

            return head.scores(x, self._small, self._scales, plan=self._plan, pdl=few_rows.pdl())
        found = torch.matmul(x.to(layer.weight.dtype), layer.weight.T)
        return found if bias is None else found + bias
