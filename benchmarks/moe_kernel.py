"""SGLang's fused MoE kernel, called as its layers call it, and timed. Needs SGLang's environment."""

from __future__ import annotations

import socket
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.distributed import bootstrap
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.layers.moe.moe_runner.triton_utils import override_config
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import fused_experts_impl
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config import get_default_config
from sglang.srt.runtime_context import SpawnRanks, get_device, publish
from sglang.srt.server_args import prepare_server_args

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .moe_plan import Case, Config

SETS, REPLAYS = 8, 5  # calls in a graph, each with its own experts; replays of it
WRONG = 0.02  # of the largest value: a configuration that is further off than rounding computes something else
_BLOCK = [128, 128]


def boot(shape: Path, *more: str, device: str = "cuda") -> None:
    """SGLang's runtime as a scheduler of one rank has it; `shape` holds a config.json."""
    argv = ["--model-path", str(shape), "--trust-remote-code", "--skip-tokenizer-init", "--device", device]
    server_args = prepare_server_args([*argv, "--attention-backend", "triton", "--disable-radix-cache", *more])
    server_args.resolve_once()
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    bootstrap.init_parallel_runtime(server_args=server_args, device=get_device().device, dist_port=port)


class Kernel:
    """The experts of one layer, and prompts that meet them at random; the last expert is met by every row.

    Weights are bf16 or block-wise fp8 (`dtype` float32 for an interpreter); each call meets other experts than the one
    before, so that weights come from memory as in decoding.
    """

    def __init__(
        self, case: Case, *, hidden: int = 2560, chosen: int = 9, device: str = "cuda", dtype: Any = torch.bfloat16
    ) -> None:
        self.case, self.hidden, self.chosen, self.device, self.dtype = case, hidden, chosen, device, dtype
        experts, columns = case.layer.experts, case.layer.columns
        self._up = self._weight(experts, 2 * columns, hidden)
        self._down = self._weight(experts, hidden, columns)
        self._more: dict[str, Any] = {}
        if case.layer.quantization:
            self._more = {"use_fp8_w8a8": True, "block_shape": _BLOCK}
            self._more |= {"w1_scale": self._scales(self._up), "w2_scale": self._scales(self._down)}
        self._right: dict[int, torch.Tensor] = {}

    def _weight(self, *size: int) -> torch.Tensor:
        made = torch.empty(size, device=self.device, dtype=self.dtype).normal_(std=0.02)
        return made.to(torch.float8_e4m3fn) if self.case.layer.quantization else made

    def _scales(self, weight: torch.Tensor) -> torch.Tensor:
        experts, out, into = weight.shape
        blocks = (experts, -(-out // _BLOCK[0]), -(-into // _BLOCK[1]))
        return torch.full(blocks, 0.01, device=self.device, dtype=torch.float32)

    def default(self, rows: int) -> Config:
        """What SGLang takes without a table."""
        layer = self.case.layer
        found = get_default_config(
            rows, layer.experts, layer.columns, self.hidden, self.chosen,
            "fp8_w8a8" if layer.quantization else None, False, _BLOCK if layer.quantization else None,
        )  # fmt: skip
        return dict(found)

    def calls(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Inputs, weights of the experts, experts; the same ones for every configuration."""
        found, experts = [], self.case.layer.experts
        for seed in range(SETS):
            torch.manual_seed(seed)
            ids = torch.rand(rows, experts - 1, device=self.device).topk(self.chosen - 1, -1).indices
            shared = torch.full((rows, 1), experts - 1, device=self.device)
            ids = torch.cat((ids, shared), -1).to(torch.int32)
            x = torch.randn(rows, self.hidden, device=self.device, dtype=self.dtype)
            found.append((x, torch.full(ids.shape, 1 / self.chosen, device=self.device), ids))
        return found

    def run(self, calls: list[tuple[Any, Any, Any]], config: Config) -> torch.Tensor:
        """The last call's result."""
        with override_config(config):
            for x, weights, ids in calls:
                found = fused_experts_impl(x, self._up, self._down, weights, ids, **self._more)
        return found

    def right(self, rows: int, found: torch.Tensor) -> bool:
        """Whether a first call's result is the default's, but for rounding."""
        if rows not in self._right:
            self._right[rows] = self.run(self.calls(rows)[:1], self.default(rows)).float()
        wanted = self._right[rows]
        apart = (found.float() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-9)
        return bool(apart < WRONG)

    def time(self, rows: int, config: Config) -> float | None:
        """Microseconds of one call; None for a wrong result."""
        calls = self.calls(rows)
        if not self.right(rows, self.run(calls[:1], config)):
            return None
        return timed(lambda: self.run(calls, config), self.device)


def timed(run: Callable[[], object], device: str) -> float:
    """Microseconds of one of the SETS calls of `run`, in a CUDA graph; without a GPU as they are."""
    run()
    if device == "cpu":
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e6 / SETS
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / SETS)
    return statistics.median(times[1:])
