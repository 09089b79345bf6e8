"""One layer of experts with SGLang's own functions, and with our hooks around them; timed. Needs SGLang."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from sglang.kernels.ops.attention.linear import fused_kda_conv_recurrent_verify as verify
from sglang.srt.configs.shared_experts import SharedExpertsConfig
from sglang.srt.layers.moe import topk
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.models import dspark
from sglang.srt.models.bailing_moe_v3 import BailingMoEGate
from sglang.srt.speculative.dspark_components import dspark_draft

from ling_engine.kernels import fp8, markov, products, router
from ling_engine.kernels import plans as shipped
from ling_engine.sglang import few_rows

from .moe_kernel import SETS, WRONG, boot, timed

if TYPE_CHECKING:
    from ling_engine.kernels.plans import Plan

    from .moe_plan import Case

__all__ = ["Layer", "boot"]
SCALE, CHOSEN, GROUPS, OF_GROUPS = 2.5, 8, 8, 4  # of Ling-3.0-flash
_BEYOND_CACHE = 1 << 28  # numbers of matrices that take turns, so that none is in the GPU's cache


class Layer:
    """Weights at random; the last expert is the shared one, which every row meets."""

    def __init__(
        self, case: Case, *, hidden: int = 2560, chosen: int = CHOSEN, limit: float | None = None,
        device: str = "cuda", dtype: Any = torch.bfloat16,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.hidden, self.columns, self.device, self.dtype = hidden, case.layer.columns, device, dtype
        experts = case.layer.experts
        make = lambda *size: torch.empty(size, device=device, dtype=dtype).normal_(std=0.02)  # noqa: E731
        self._up, self._down = make(experts, 2 * self.columns, hidden), make(experts, hidden, self.columns)
        keys = SimpleNamespace(num_experts=experts - 1, hidden_size=hidden, moe_router_enable_expert_bias=True)
        self._gate = BailingMoEGate(keys, params_dtype=torch.float32).to(device)
        self._gate.weight.data.normal_(std=0.02)
        self._gate.expert_bias.data.normal_(std=0.01)
        self._topk = topk.TopKConfig(
            top_k=chosen + 1, use_grouped_topk=True, topk_group=OF_GROUPS, num_expert_group=GROUPS,
            shared_experts=SharedExpertsConfig(num_fused_shared_experts=1),
            correction_bias=self._gate.expert_bias.data, routed_scaling_factor=SCALE, scoring_func="sigmoid",
        )  # fmt: skip
        self._runner = MoeRunnerConfig(
            num_experts=experts, num_local_experts=experts, inplace=False, routed_scaling_factor=SCALE,
            gemm1_clamp_limit=limit,
        )  # fmt: skip
        self._pair: tuple[Plan, Plan] | None = None

    def plans(self, rows: int) -> tuple[Plan, Plan]:
        """Those that are shipped. Raises ValueError where none fits."""
        found = shipped.experts(self.hidden, self.columns, rows)
        if found is None:
            raise ValueError(f"{self.hidden} x {self.columns}: no plan fits")
        return found

    def use(self, pair: tuple[Plan, Plan] | None) -> None:
        """Other plans from now on; None: those that are shipped."""
        self._pair = pair

    def calls(self, rows: int) -> list[torch.Tensor]:
        """Inputs; the same ones each time."""
        torch.manual_seed(rows)
        return [torch.randn(rows, self.hidden, device=self.device, dtype=self.dtype) for _ in range(SETS)]

    def scores(self, x: torch.Tensor, *, ours: bool) -> torch.Tensor:
        weight = self._gate.weight
        plan = shipped.scores(self.hidden, weight.shape[0])
        if ours and plan is not None:
            return router.scores(x, weight.data, plan=plan, pdl=few_rows.pdl())
        found: torch.Tensor = self._gate(x)
        return found

    def choice(self, x: torch.Tensor, logits: torch.Tensor, *, ours: bool) -> Any:
        if ours:
            return few_rows.chosen(topk.select_experts, x, logits, self._topk, layer_id=0)
        return topk.select_experts(x, logits, self._topk, layer_id=0)

    def experts(self, x: torch.Tensor, chosen: Any, *, ours: bool) -> torch.Tensor:
        if not ours:
            found: torch.Tensor = fused_moe.fused_experts(x, self._up, self._down, chosen, self._runner)
        elif self._pair is None:
            found = few_rows.summed(_never, x, self._up, self._down, chosen, self._runner)
        else:
            layer = few_rows._layer(self._up, self._down, self._runner.gemm1_clamp_limit)
            assert layer is not None
            out = torch.empty_like(x)
            found = layer(
                x, chosen.topk_weights, chosen.topk_ids, out, scale=SCALE, plans=self._pair, pdl=few_rows.pdl()
            )
        return found

    def layer(self, x: torch.Tensor, *, ours: bool) -> torch.Tensor:
        return self.experts(x, self.choice(x, self.scores(x, ours=ours), ours=ours), ours=ours)

    def ours(self, calls: list[torch.Tensor], pair: tuple[Plan, Plan]) -> torch.Tensor:
        """The experts of those inputs with other plans; the last one's result."""
        self.use(pair)
        for x in calls:
            found = self.experts(x, self.choice(x, self.scores(x, ours=False), ours=False), ours=True)
        self.use(None)
        return found

    def apart(self, rows: int) -> dict[str, Any]:
        """How far ours is from SGLang's, of the largest value; rows whose experts are others."""
        x = self.calls(rows)[0]
        wanted = [self.scores(x, ours=False)]
        wanted += [self.choice(x, wanted[0], ours=False)]
        got = [self.scores(x, ours=True)]
        got += [self.choice(x, got[0], ours=True)]
        sets = [[sorted(row) for row in one.topk_ids.tolist()] for one in (wanted[1], got[1])]
        return {
            "scores": off(got[0], wanted[0]),
            "experts": off(self.experts(x, wanted[1], ours=True), self.experts(x, wanted[1], ours=False)),
            "other experts": sum(a != b for a, b in zip(*sets, strict=True)),
            "weights": off(got[1].topk_weights.sort(-1).values, wanted[1].topk_weights.sort(-1).values),
        }

    def time(self, rows: int, part: str, *, ours: bool, pair: tuple[Plan, Plan] | None = None) -> float | None:
        """Microseconds of one call in a CUDA graph (without a GPU, of one call); None for a wrong result."""
        calls = self.calls(rows)
        logits = [self.scores(x, ours=False) for x in calls]
        chosen = [self.choice(x, one, ours=False) for x, one in zip(calls, logits, strict=True)]
        self.use(pair)
        if pair is not None:
            right = self.experts(calls[0], chosen[0], ours=False)
            if off(self.experts(calls[0], chosen[0], ours=True), right) > WRONG:
                return None

        def run() -> None:
            for x, one, choice in zip(calls, logits, chosen, strict=True):
                if part == "scores":
                    self.scores(x, ours=ours)
                elif part == "choice":
                    self.choice(x, one, ours=ours)
                elif part == "experts":
                    self.experts(x, choice, ours=ours)
                else:
                    self.layer(x, ours=ours)

        try:
            return timed(run, self.device)
        finally:
            self.use(None)


class Product:
    """A matrix of a step's products: the target's in bf16, or a draft's, `rounded`."""

    def __init__(self, columns: int, summands: int, *, rounded: bool, device: str = "cuda") -> None:
        torch.manual_seed(0)
        self.columns, self.summands, self.rounded, self._device = columns, summands, rounded, device
        self._weights = [
            torch.empty((columns, summands), device=device, dtype=torch.bfloat16).normal_(std=0.02)
            for _ in range(1 if device == "cpu" else max(1, _BEYOND_CACHE // (columns * summands)))
        ]
        self._ours = [products.Matrix(*fp8.rounded(one)) if rounded else products.Matrix(one) for one in self._weights]

    @property
    def plan(self) -> Plan | None:
        """That which is shipped."""
        return (shipped.rounded if self.rounded else shipped.product)(self.summands, self.columns)

    def time(self, rows: int, plan: Plan | None) -> float:
        """Microseconds in a CUDA graph; None: as PyTorch multiplies in bf16."""
        x = torch.randn(rows, self.summands, device=self._device, dtype=torch.bfloat16)

        def run() -> None:
            for at in range(SETS):
                weight, ours = (one[at % len(self._weights)] for one in (self._weights, self._ours))
                if plan is None:
                    torch.matmul(x, weight.T)
                else:
                    ours.product(x, plan=plan, pdl=few_rows.pdl())

        return timed(run, self._device)


class Markov:
    """A block of DSPARK's drafts after the head."""

    def __init__(self, *, words: int = 157184, rank: int = 256, steps: int = 8, device: str = "cuda") -> None:
        torch.manual_seed(0)
        make = functools.partial(torch.randn, device=device, dtype=torch.bfloat16)
        self._device, self.steps = device, steps
        self.module = dspark.VanillaMarkov(vocab_size=words, markov_rank=rank).to(device, torch.bfloat16)
        with torch.no_grad():
            self.module.markov_w1.weight.copy_(make(words, rank))
            self.module.markov_w2.weight.copy_(0.2 * make(words, rank))
        self.base, self.kept = make(1, steps, words), make(1, steps, words)
        self.first = torch.zeros(1, dtype=torch.int64, device=device)
        self.round = torch.zeros(1, dtype=torch.int64, device=device)
        rows, matrix = self.module.markov_w1.weight.data, self.module.markov_w2.weight.data
        plan = shipped.markov(words, rank)
        assert plan is not None
        self.head = markov.Head(rows, *fp8.rounded(matrix), plan)

    def drafts(self, *, ours: bool, temperature: float = 0.0) -> torch.Tensor:
        """[steps] int64."""
        heat = torch.full((1,), temperature, device=self._device)
        if ours:
            return self.head.drafted(
                self.base[0], self.first, self.kept[0], heat, self.round, seed=7, pdl=few_rows.pdl()
            )
        noise = SimpleNamespace(key=7, offset=self.round)
        sync = SimpleNamespace(sync=lambda _, values: values)
        with torch.no_grad():
            found: torch.Tensor = dspark_draft.draft_markov_block(
                markov_head=self.module, base_logits=self.base, anchor_tokens=self.first, draft_hidden=None,
                step_temperatures=heat, noise=noise, tp_sync=sync, logits_out=self.kept,
            )[0][0]  # fmt: skip
        return found

    def time(self, *, ours: bool) -> float:
        """Microseconds of the whole block in a CUDA graph."""
        return timed(lambda: [self.drafts(ours=ours) for _ in range(SETS)] and None, self._device)


class Verify:
    """A layer of KDA that verifies a round's rows of one request: `ring` of the cookbook's replay, else with every
    row's state kept."""

    def __init__(self, rows: int, *, ring: int = 0, heads: int = 32, width: int = 128, device: str = "cuda") -> None:
        torch.manual_seed(0)
        make = functools.partial(torch.randn, device=device)
        count = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        half, wide = torch.bfloat16, 3 * heads * width
        self._device = device
        self._given: dict[str, Any] = {
            "mixed_qkv": make(rows, wide).to(half), "conv_weight": make(wide, 4), "conv_bias": None,
            "conv_state": make(2, 3, wide).to(half).transpose(1, 2), "conv_state_indices": count(1) + 1,
            "intermediate_conv_window": make(1, rows, wide, 3).to(half), "intermediate_state_indices": count(1),
            "a": make(rows, heads * width).to(half), "b": make(rows, heads).to(half), "A_log": make(heads),
            "dt_bias": make(heads * width), "ssm_states": make(2, heads, width, width), "cache_indices": count(1) + 1,
            "intermediate_states_buffer": None if ring else make(1, rows, heads, width, width), "scale": width**-0.5,
            "T": rows, "num_q_heads": heads, "num_v_heads": heads, "head_k_dim": width, "head_v_dim": width,
            "lower_bound": -5.0,
        }  # fmt: skip
        if ring:
            of = lambda *size: make(2, heads, ring, *size)  # noqa: E731
            self._given |= {"cache_ring": True, "replayssm_rawv": of(width).to(half),
                            "replayssm_rawk": of(width).to(half), "replayssm_g": of(width),
                            "replayssm_beta": of()}  # fmt: skip

    def run(self, columns: int | None) -> list[torch.Tensor]:
        """The result, and what is kept of it, with so many columns of a state for a program; None: as it is set."""
        with mock.patch.object(verify, "KDA_VERIFY_BLOCK_V", columns) if columns else contextlib.nullcontext():
            out = verify.fused_kda_conv_gating_verify(**self._given)
        kept = [value for name, value in self._given.items() if name.startswith(("intermediate", "replay"))]
        return [out, *(one for one in kept if one is not None)]

    def time(self, columns: int) -> float:
        """Microseconds in a CUDA graph."""
        return timed(lambda: [self.run(columns) for _ in range(SETS)], self._device)


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, of the largest value."""
    return float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1e-9))


def _never(*_: Any, **__: Any) -> Any:
    raise RuntimeError("our kernels were left out")
