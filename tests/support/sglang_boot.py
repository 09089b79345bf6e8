"""SGLang's model runner in this process, on a CPU, as its scheduler makes one. Loaded in SGLang's environment.

Prefill and decode go through the real attention back ends (Triton, interpreted) and the real pools.
"""

import contextlib
import socket
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.benchmark import one_batch
from sglang.kernels.ops.mamba.triton_ops import initialize_mamba_selective_state_update_backend
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import bootstrap
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.layers.moe.utils import (
    draft_model_build_scope,
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import SpawnRanks, get_device, get_schedule, publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

ARGUMENTS = (
    *("--trust-remote-code", "--skip-tokenizer-init", "--skip-server-warmup", "--device", "cpu", "--tp-size", "1"),
    *("--dtype", "float32", "--attention-backend", "triton", "--disable-radix-cache"),
    *("--max-total-tokens", "512", "--max-running-requests", "2", "--context-length", "256"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """A process that SGLang takes for a scheduler of one rank."""

    arguments: Any
    config: ModelConfig
    port: int

    def draft_config(self, folder: str) -> ModelConfig:
        return ModelConfig.from_server_args(self.arguments, model_path=folder, is_draft_model=True)


def boot(folder: str, *extra: str) -> Booted:
    """Once a process: arguments resolved, plug-ins loaded, one-rank groups made."""
    load_plugins()
    arguments = prepare_server_args(["--model-path", folder, *ARGUMENTS, *extra])
    arguments.resolve_once()
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    config = ModelConfig.from_server_args(arguments)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    bootstrap.init_parallel_runtime(server_args=arguments, device=get_device().device, dist_port=port)
    bootstrap.init_layer_runtime(model_config=config)
    return Booted(arguments=arguments, config=config, port=port)


def target_runner(booted: Booted) -> ModelRunner:
    """The target with pools and attention back ends."""
    runner = ModelRunner(
        model_config=booted.config,
        mem_fraction_static=0.5,
        gpu_id=0,
        nccl_port=booted.port,
        server_args=booted.arguments,
    )
    runner.alloc_memory_pool()
    runner.init_attention_backends()
    initialize_mamba_selective_state_update_backend(booted.arguments)
    runner.init_cuda_graphs()
    return runner


@contextlib.contextmanager
def as_draft() -> Iterator[None]:
    """What SGLang's draft workers are made and run under."""
    with draft_model_build_scope(), speculative_moe_backend_context(), speculative_moe_a2a_backend_context():
        yield


def draft_runner(booted: Booted, target: ModelRunner, folder: str) -> ModelRunner:
    """A draft that shares the target's requests and token slots; its own cache."""
    with as_draft():
        runner = ModelRunner(
            model_config=booted.draft_config(folder),
            mem_fraction_static=0.5,
            gpu_id=0,
            nccl_port=booted.port,
            server_args=booted.arguments,
            is_draft_worker=True,
            req_to_token_pool=target.req_to_token_pool,
            token_to_kv_pool_allocator=target.token_to_kv_pool_allocator,
            memory_pool_config=target.memory_pool_config,
        )
        runner.alloc_memory_pool(target.memory_pool_config)
        runner.init_attention_backends()
        runner.init_cuda_graphs(capture_decode_cuda_graph=False)
    return runner


def request(ids: Sequence[int]) -> Req:
    """A greedy request that was just received."""
    made = Req(
        rid=0,
        origin_input_text="",
        origin_input_ids=array("q", ids),
        sampling_params=SamplingParams(temperature=0, max_new_tokens=64),
    )
    made.full_untruncated_fill_ids = made.origin_input_ids
    made.logprob_start_len = -1
    made.extend_end = len(ids)
    return made


def prefill(runner: ModelRunner, made: Req, capture: CaptureHiddenMode = CaptureHiddenMode.NULL) -> tuple[Any, Any]:
    """The model's output for the request's rows behind its prefix, and the running batch."""
    return _extend(runner, runner, made, capture)


@torch.no_grad()
def _extend(runner: ModelRunner, target: ModelRunner, made: Req, capture: CaptureHiddenMode) -> tuple[Any, Any]:
    batch = ScheduleBatch.init_new(
        reqs=[made],
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        tree_cache=one_batch.TreeCacheNamespace(
            page_size=get_schedule().page_size,
            device=runner.device,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        ),
        model_config=target.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    batch.prepare_for_extend()
    if batch.input_ids is None:
        batch.input_ids = batch.prefill_input_ids_cpu
        batch.prefill_input_ids_cpu = None
    forward_batch = ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=capture, return_hidden_states_before_norm=False
    )
    return runner.forward(forward_batch).logits_output, batch


def decode(runner: ModelRunner, last: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """One more id behind `last` [1]: it, and its scores [1, vocabulary]."""
    return one_batch.decode(last, batch, runner)


def cache_rows(runner: ModelRunner, made: Req, length: int) -> Tensor:
    """Where the request's first positions lie in the caches."""
    return runner.req_to_token_pool.req_to_token[made.kv.req_pool_idx, :length].long()


def draft_prefill(runner: ModelRunner, batch: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    """The NEXTN layer over the target's prefill batch, as SGLang's worker runs it; the last row's scores."""
    given = EagleDraftExtendInput(hidden_states=hidden, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1)
    return _draft(runner, batch, ids, given)


def draft_step(runner: ModelRunner, batch: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    """The same for one id in the last place of a batch that decodes."""
    given = EagleDraftInput(hidden_states=hidden, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1)
    return _draft(runner, batch, ids, given)


@torch.no_grad()
def _draft(runner: ModelRunner, batch: Any, ids: Tensor, given: Any) -> Tensor:
    batch.input_ids, batch.spec_info = ids, given
    forward_batch = ForwardBatch.init_new(
        batch, runner, capture_hidden_mode=CaptureHiddenMode.LAST, return_hidden_states_before_norm=False
    )
    forward_batch.return_logprob = False
    with as_draft():
        scores = runner.forward(forward_batch).logits_output.next_token_logits
    batch.spec_info = None
    return scores


def block_forward(runner: ModelRunner, made: Req, block: Sequence[int]) -> Tensor:
    """The hidden rows of a DSPARK draft for a block of ids behind the request's rows, whose keys are cached."""
    made.prefix_len = made.extend_end
    made.full_untruncated_fill_ids.extend(block)
    made.extend_end += len(block)
    with as_draft():
        out, _batch = _extend(runner, runner, made, CaptureHiddenMode.NULL)
    return out.hidden_states
