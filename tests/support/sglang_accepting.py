"""DSPARK's acceptance as the verify graph would run it, with SGLang's own classes on a CPU. `RESULT`: a file for JSON.

The worker is a stand-in with what our hook reads; what the hook builds is SGLang's, and is run as a capture runs it.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt import runtime_context
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.dspark_components import dspark_worker_v2
from tests.support.sglang_guards import missing

from ling_api.errors import BadInput
from ling_engine.sglang import accepting, hook_variables

ROWS, VOCABULARY, REQUESTS = 9, 32, 3
LENGTHS = [100, 7, 4000]


def worker(**changed: Any) -> Any:
    pool = SimpleNamespace(req_to_token=torch.zeros(16, 8, dtype=torch.int32))
    plain = SimpleNamespace(full_v2p_table=None)
    kept: list[dict[str, Any]] = []
    caches = SimpleNamespace(update_mamba_state_after_mtp_verify=lambda **named: kept.append(named))
    values = {
        "_hosts_draft": True, "_verify_epilogue": None, "_verify_planner": SimpleNamespace(mode_value="static"),
        "_decode_graph_allowed": True, "verify_num_draft_tokens": ROWS, "device": "cpu",
        "_tp_sync": SimpleNamespace(enabled=lambda _: False, sync=lambda *_: None), "_simulated_correct_len": None,
        "draft_model": None, "_block_pos_offsets": torch.arange(ROWS),
        "_kv_injector": SimpleNamespace(swa_ring_size=None, inject_target_hidden=lambda **named: kept.append(named)),
        "draft_model_runner": SimpleNamespace(token_to_kv_pool=object(), kv_index_translator=plain),
        "model_runner": SimpleNamespace(
            capture_tail_hooks=[], req_to_token_pool=pool, kv_index_translator=plain, attn_backend=caches, model=None
        ),
        "_verify_executor": SimpleNamespace(verify_epilogue=None), "_need_mamba_verify_commit": True, "kept": kept,
        "server_args": SimpleNamespace(disable_overlap_schedule=False, disable_radix_cache=True),
    }  # fmt: skip
    return SimpleNamespace(**(values | changed))


def folded(one: Any, **parallel: Any) -> Any:
    exec_context = SimpleNamespace(
        graph=SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(bs=[1, REQUESTS])))
    )
    where = SimpleNamespace(**({"pp_size": 1, "attn_dp_enabled": False} | parallel))
    with (
        mock.patch.object(runtime_context, "get_exec", lambda: exec_context),
        mock.patch.object(runtime_context, "get_parallel", lambda: where),
        mock.patch.dict(os.environ, hook_variables.ACCEPTANCE),
    ):
        accepting.fold(None, one)
    return one


def accepted() -> dict[str, Any]:
    """Of requests whose first 0, 3 and all drafts are right: what the graph says, and what is right."""
    torch.manual_seed(0)
    one = folded(worker())
    (hook,) = one.model_runner.capture_tail_hooks
    logits = torch.randn(REQUESTS * ROWS, VOCABULARY)
    best = logits.argmax(-1).view(REQUESTS, ROWS)
    right = [0, 3, ROWS - 1]
    drafts = torch.randint(VOCABULARY, (REQUESTS, ROWS))
    for row, count in enumerate(right):
        drafts[row, 1 : count + 1] = best[row, :count]
        if count < ROWS - 1:
            drafts[row, count + 1] = (best[row, count] + 1) % VOCABULARY
    mode = SimpleNamespace(is_target_verify=lambda: True)
    batch = SimpleNamespace(
        batch_size=REQUESTS, input_ids=drafts.view(-1), seq_lens=torch.tensor(LENGTHS), forward_mode=mode,
        req_pool_indices=torch.arange(1, REQUESTS + 1), out_cache_loc=torch.zeros(REQUESTS * ROWS, dtype=torch.int64),
        positions=torch.zeros(REQUESTS * ROWS, dtype=torch.int64),
    )  # fmt: skip
    runner = SimpleNamespace(model_runner=SimpleNamespace(is_draft_worker=False), ragged_verify_mode=False)
    out = LogitsProcessorOutput(next_token_logits=logits, hidden_states=torch.zeros(1))
    epilogue = one._verify_epilogue
    epilogue.begin_static_step(REQUESTS, False)
    hook(runner, out, batch, REQUESTS * ROWS)
    sampled = written(one)
    epilogue.begin_static_step(REQUESTS - 1, True)
    hook(runner, out, batch, REQUESTS * ROWS)
    padded = written(one)
    epilogue.begin_static_step(REQUESTS, True)
    hook(runner, out, batch, REQUESTS * ROWS)
    said = epilogue.read_accept(REQUESTS)
    relay = epilogue.future_relay
    tokens = [row[: count + 1].tolist() for row, count in zip(said.out_tokens, right, strict=True)]
    wanted = [[*drafts[row, 1 : count + 1].tolist(), int(best[row, count])] for row, count in enumerate(right)]
    return {
        "tokens": [tokens, wanted],
        "confirmed": [said.correct_len.tolist(), right],
        "lengths": [said.new_seq_lens.tolist(), [a + b + 1 for a, b in zip(LENGTHS, right, strict=True)]],
        "bonus": [said.bonus.tolist(), [row[-1] for row in wanted]],
        "counted": [epilogue.read_block_accept_lens(REQUESTS).tolist(), [count + 1 for count in right]],
        "next round's lengths": [relay.new_seq_lens[1 : REQUESTS + 1].tolist(), said.new_seq_lens.tolist()],
        "next round's tokens": [relay.output_tokens[1 : REQUESTS + 1].tolist(), said.bonus.tolist()],
        "executor has it": [one._verify_executor.verify_epilogue is epilogue, True],
        "written for requests that sample": [sampled, {"cache": [0] * REQUESTS, "states": [-1] * REQUESTS}],
        "written for a batch that is padded": [
            padded,
            {"cache": [*(count + 1 for count in right[:-1]), 0], "states": [*right[:-1], -1]},
        ],
        "written": [written(one), {"cache": [count + 1 for count in right], "states": right}],
        "committed behind the graph": [behind(one), [False, True]],
    }


def written(one: Any) -> dict[str, list[int]]:
    """Rows of each request that the draft's cache gets, and the last row that KDA's states get, since the last call."""
    cache, states = one.kept
    one.kept.clear()
    return {"cache": cache["commit_lens"].tolist(), "states": states["last_correct_step_indices"].tolist()}


def behind(one: Any) -> list[bool]:
    """Whether states are committed by SGLang's own call, of a round that a graph accepted and of one that none did."""
    called: list[Any] = []
    found = []
    one._verify_epilogue.note_static_verify(REQUESTS)
    for _ in range(2):
        accepting.committed(lambda *_, **named: called.append(named), one, batch=None)
        found.append(bool(called))
    return found


def left_alone() -> dict[str, bool]:
    """By reason, whether nothing was changed."""
    mine, ragged = object(), SimpleNamespace(mode_value="compact")
    prefixes = SimpleNamespace(disable_overlap_schedule=False, disable_radix_cache=False)
    other = SimpleNamespace(
        capture_tail_hooks=[],
        attn_backend=SimpleNamespace(linear_attn_backend=SimpleNamespace(accept_lens_pool=torch.zeros(1))),
    )
    moved = SimpleNamespace(
        token_to_kv_pool=object(), kv_index_translator=SimpleNamespace(full_v2p_table=torch.zeros(1))
    )
    writes = SimpleNamespace(token_to_kv_pool=SimpleNamespace(set_swa_key_buffer_radix_fused_norm_rope=None))
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "SGLang's own": ({"_verify_epilogue": mine}, {}),
        "ragged": ({"_verify_planner": ragged}, {}),
        "no graphs": ({"_decode_graph_allowed": False}, {}),
        "no draft here": ({"_hosts_draft": False}, {}),
        "stages": ({}, {"pp_size": 2}),
        "data-parallel attention": ({}, {"attn_dp_enabled": True}),
        "no overlap": ({"server_args": SimpleNamespace(disable_overlap_schedule=True)}, {}),
        "another kind of draft": ({"draft_model_runner": writes}, {}),
        "a prefix cache": ({"server_args": prefixes}, {}),
        "another way of keeping states": ({"model_runner": other}, {}),
        "translated slots": ({"draft_model_runner": moved}, {}),
    }
    found = {}
    for name, (changed, parallel) in cases.items():
        one = folded(worker(**changed), **parallel)
        found[name] = (
            one._verify_epilogue is changed.get("_verify_epilogue") and not one.model_runner.capture_tail_hooks
        )
    return found


def placed() -> dict[str, str | bool]:
    kept = dspark_worker_v2.DSparkWorkerV2.init_attention_backends
    accepting.ensure()
    unasked = dspark_worker_v2.DSparkWorkerV2.init_attention_backends is kept
    with mock.patch.dict(os.environ, {hook_variables.ACCEPT_IN_GRAPH: "yes"}):
        try:
            accepting.ensure()
        except BadInput as error:
            refused = str(error)
    with mock.patch.dict(os.environ, {hook_variables.ACCEPT_IN_GRAPH: "1"}):
        with mock.patch.object(accepting, "READY", f"{accepting.READY}_gone"):
            another = missing(accepting.ensure)
        accepting.ensure()
        accepting.ensure()
    hooked = dspark_worker_v2.DSparkWorkerV2.init_attention_backends is not kept
    return {"unasked": unasked, "another release": another, "hooked": hooked, "refused": refused}


def main(argv: Sequence[str]) -> int:
    told = {"accepted": accepted(), "left alone": left_alone(), **placed()}
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
