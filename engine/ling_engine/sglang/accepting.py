"""DSPARK's acceptance in the graph of the verification: a hook that builds what SGLang builds for another target.

SGLang 0.5.23 can end a verify graph with what follows it: the target's best tokens, how many drafts they confirm, the
lengths and tokens that the next round starts from. It does so for one target alone, though nothing of it depends on
the target; for others eight launches follow each graph, while the next round waits for the host
(`speculative/dspark_components`: `dspark_worker_v2.py`, `dspark_verify.py`). Batches that sample, have a grammar or
penalties are accepted outside of it, as before. What is written into caches stays outside too.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any, Final

from . import hook_variables, hooking

_log = logging.getLogger(__name__)
_HOME: Final = "sglang.srt.speculative.dspark_components"
_WORKER: Final = f"{_HOME}.dspark_worker_v2"
READY: Final = f"{_WORKER}.DSparkWorkerV2.init_attention_backends"  # before the target's graphs are captured


def ensure(*_: object, **__: object) -> None:
    """In ranks that decode with DSPARK, where it is wanted. Raises BadInput, and PluginMissing where SGLang is another
    one."""
    if hook_variables.accept_in_graph(os.environ) and _WORKER in sys.modules:
        hooking.place(hooking.AFTER, READY, fold)


def fold(_: object, worker: Any, *args: object, **kwargs: object) -> None:
    """Runs after READY. Does nothing where SGLang has built it itself, or could not use it."""
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    if why := unsuited(worker, context.get_parallel()):
        _log.info("dspark_accept=after_graph why=%s", why)
        return
    module: Any = importlib.import_module(f"{_HOME}.dspark_verify")
    environ: Any = importlib.import_module("sglang.srt.environ")
    on = {name: getattr(environ.envs, name).get() for name in hook_variables.ACCEPTANCE}
    epilogue = module.DsparkVerifyEpilogue(
        max_bs=max(context.get_exec().graph.cuda_graph_config.decode.bs),
        verify_num_draft_tokens=worker.verify_num_draft_tokens,
        device=worker.device,
        tp_sync=worker._tp_sync,
        fused_argmax=True,  # the same but for rows that are no numbers
        simulated_correct_len=worker._simulated_correct_len,
        fused_accept_tail=on["SGLANG_DSPARK_FUSED_ACCEPT_TAIL"],
        post_fold=on["SGLANG_OPT_DSV41_DSPARK_POST_FOLD"],
        commit_ctx=module.CommitInjectCtx(
            draft_model=worker.draft_model,
            block_pos_offsets=worker._block_pos_offsets,
            resolve_pool=lambda: worker.draft_model_runner.token_to_kv_pool,
            resolve_req_to_token=lambda: worker.model_runner.req_to_token_pool.req_to_token,
            kv_injector=worker._kv_injector,
        ),
    )
    if epilogue.folds_commit:
        _log.info("dspark_accept=after_graph why=a draft whose cache a graph would write")
        return
    worker._verify_epilogue = worker._verify_executor.verify_epilogue = epilogue
    worker.model_runner.capture_tail_hooks.append(epilogue.capture_hook)
    _log.info("dspark_accept=in_graph one_kernel=%d next_round=%d", epilogue._fused_accept_tail, epilogue._post_fold)


def unsuited(worker: Any, parallel: Any) -> str:
    """Why acceptance stays behind the graph, "" when it need not."""
    if not worker._hosts_draft or parallel.pp_size > 1:
        return "stages"
    if worker._verify_epilogue is not None:
        return "SGLang's own"
    if worker._verify_planner.mode_value != "static":
        return "not every draft is verified"
    if not worker._decode_graph_allowed:
        return "no graphs"
    if parallel.attn_dp_enabled:
        return "data-parallel attention"
    if worker.server_args.disable_overlap_schedule:  # lengths of a round would lie where the next graph writes its own
        return "no overlap"
    return ""
