"""DSPARK's acceptance in the graph of the verification, and what is kept of it: hooks.

SGLang 0.5.23 can end a verify graph with what follows it: the target's best tokens, how many drafts they confirm, the
lengths and tokens that the next round starts from, and what the draft's cache gets of the target's rows. It does so for
one target alone; for others eight launches of the host follow each graph, and a dozen that keep what it confirmed,
before the next draft (`speculative/dspark_components`: `dspark_worker_v2.py`, `dspark_verify.py`). Here they are in the
graph for ours, and KDA's states of the confirmed rows with them. Batches that sample, have a grammar or penalties are
accepted behind the graph, as before: a gate, 0 for them, keeps it from writing anything.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from . import hook_variables, hooking

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_HOME: Final = "sglang.srt.speculative.dspark_components"
_WORKER: Final = f"{_HOME}.dspark_worker_v2"
READY: Final = f"{_WORKER}.DSparkWorkerV2.init_attention_backends"  # before the target's graphs are captured
STATES: Final = f"{_WORKER}.DSparkWorkerV2._commit_target_mamba_states_after_verify"


def ensure(*_: object, **__: object) -> None:
    """In ranks that decode with DSPARK, where it is wanted. Raises BadInput, and PluginMissing where SGLang is another
    one."""
    if hook_variables.accept_in_graph(os.environ) and _WORKER in sys.modules:
        hooking.place(hooking.AFTER, READY, fold)
        hooking.place(hooking.AROUND, STATES, committed)


def fold(_: object, worker: Any, *args: object, **kwargs: object) -> None:
    """Runs after READY. Does nothing where SGLang has built it itself, or could not use it."""
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    if why := unsuited(worker, context.get_parallel()):
        _log.info("dspark_accept=after_graph why=%s", why)
        return
    module: Any = importlib.import_module(f"{_HOME}.dspark_verify")
    environ: Any = importlib.import_module("sglang.srt.environ")
    on = {name: getattr(environ.envs, name).get() for name in hook_variables.ACCEPTANCE}
    epilogue = _committing(module.DsparkVerifyEpilogue)(
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
    if worker._need_mamba_verify_commit:
        epilogue.keep_states = functools.partial(_keep_states, worker.model_runner)
    worker._verify_epilogue = worker._verify_executor.verify_epilogue = epilogue
    worker.model_runner.capture_tail_hooks.append(epilogue.capture_hook)
    _log.info("dspark_accept=in_graph one_kernel=%d next_round=%d", epilogue._fused_accept_tail, epilogue._post_fold)


def _committing(base: Any) -> Any:
    """SGLang's class, whose graphs write what of the drafts is confirmed into caches."""

    class Committing(base):  # type: ignore[misc]
        folds_commit = True
        keep_states: Callable[[Any, Any], None] | None = None
        in_graph = False  # whether the round at hand was accepted by a graph, and its states are kept

        def run_static(self, io: Any, *, accept: Callable[..., Any], gate: Any, kv_projected: bool = False) -> bool:
            lengths = []

            def noted(*args: Any, **named: Any) -> Any:
                lengths.append(accept(*args, **named))
                return lengths[0]

            found: bool = super().run_static(io, accept=noted, gate=gate, kv_projected=kv_projected)
            if self.keep_states is not None:
                self.keep_states(lengths[0], io.req_pool_indices)
            return found

        def begin_static_step(self, bs: int, armed: bool) -> None:
            self.in_graph = False
            super().begin_static_step(bs, armed)

        def note_static_verify(self, bs: int) -> None:
            super().note_static_verify(bs)
            self.in_graph = self.keep_states is not None

    return Committing


def _keep_states(runner: Any, confirmed: Any, slots: Any) -> None:
    """Of `confirmed` [requests] int32 rows of each request; of none where it is 0."""
    runner.attn_backend.update_mamba_state_after_mtp_verify(
        last_correct_step_indices=confirmed.long() - 1, mamba_track_indices=None, mamba_steps_to_track=None,
        model=runner.model, req_pool_indices=slots,
    )  # fmt: skip


def committed(original: Callable[..., None], worker: Any, **named: Any) -> None:
    """In the place of _commit_target_mamba_states_after_verify: a graph has done it, or it is done as before."""
    epilogue = worker._verify_epilogue
    if getattr(epilogue, "in_graph", False):
        epilogue.in_graph = False
    else:
        original(worker, **named)


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
    return _unkept(worker)


def _unkept(worker: Any) -> str:
    """Why a graph cannot keep what it confirms, as `unsuited`."""
    if not worker.server_args.disable_radix_cache:
        return "a prefix cache, for which states are tracked"
    if hasattr(worker.draft_model_runner.token_to_kv_pool, "set_swa_key_buffer_radix_fused_norm_rope"):
        return "a draft of another kind"
    linear = getattr(worker.model_runner.attn_backend, "linear_attn_backend", None)
    if getattr(linear, "accept_lens_pool", None) is not None:  # which a row of padding would write
        return "states that are kept by another way than replays or copies"
    runners = (worker.model_runner, worker.draft_model_runner)
    if any(one.kv_index_translator.full_v2p_table is not None for one in runners):
        return "slots that are translated"
    return ""
