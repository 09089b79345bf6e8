"""Our arithmetic against functions of SGLang that its CPU path never takes: what a GPU would run. SGLang's environment.

Kernels are Triton's, interpreted; the others are SGLang's own references in torch.
"""

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn
from sglang.kernels.ops.speculative.dflash import compute_dflash_correct_drafts_and_bonus
from sglang.srt.layers.attention.linear.kernels.kda_triton import TritonKDAKernel
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe import _swiglu_silu_clamp_mul
from sglang.srt.layers.moe.topk import biased_grouped_topk_impl
from tests.support.sglang_interpreter import exact
from tests.support.sglang_table import Table
from torch import Tensor
from torch.nn import functional as F

from ling_engine.reference.kda import Kda, KdaState
from ling_engine.reference.moe import Glu, Moe
from ling_engine.reference.speculate import accept_prefix

if TYPE_CHECKING:
    from tests.support.sglang_parity import Ours

KERNEL, FUNCTION = "kernel, Triton interpreted", "function, torch"
VERIFIED = 9  # rows of a DSPARK verify


def compare(ours: "Ours", table: Table, seed: int) -> None:
    drawing = torch.Generator().manual_seed(seed)
    layers = ours.target.model.layers
    kda, moe = layers[0].attention, next(b.mlp for b in layers if isinstance(b.mlp, Moe))
    x = torch.randn(70, ours.config.hidden_size, generator=drawing)
    carried = KdaState(
        torch.randn(3, 3 * kda.heads * kda.width, generator=drawing),
        torch.randn(kda.heads, kda.width, kda.width, generator=drawing),
    )
    with exact():
        _chunked(kda, table, x, carried, "chunked, carried state")
        _verified(kda, table, x[:VERIFIED], carried)
    _chunked(kda, table, x, carried, "chunked, as it is: bfloat16 between its parts")
    _router(moe, table, x)
    _clamped(table, drawing)
    _accepted(table, drawing)


def _gate(kda: Kda, x: Tensor) -> tuple[Tensor, Tensor]:
    """Raw gate [1, T, H, K] and learning rate [1, T, H], before their sigmoids."""
    return kda.f_proj(x).view(1, len(x), kda.heads, kda.width), kda.b_proj(x)[None]


def _rows(kda: Kda, x: Tensor, carried: KdaState) -> tuple[Tensor, ...]:
    rows = torch.cat((carried.conv, torch.cat((kda.q_proj(x), kda.k_proj(x), kda.v_proj(x)), -1)))
    return kda._convolve(rows).view(1, len(x), 3, kda.heads, kda.width).unbind(2)


def _chunked(kda: Kda, table: Table, x: Tensor, carried: KdaState, what: str) -> None:
    """The convolution and the chunked kernel of prefill, both from carried states."""
    size = 3 * kda.heads * kda.width
    raw = torch.cat((kda.q_proj(x), kda.k_proj(x), kda.v_proj(x)), -1)
    weight = torch.cat((kda.q_conv1d.weight, kda.k_conv1d.weight, kda.v_conv1d.weight)).squeeze(1)
    offsets, slots = torch.tensor([0, len(x)], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    conv = torch.stack((torch.zeros(3, size), carried.conv)).transpose(1, 2)
    mixed = causal_conv1d_fn(
        *(raw.T, weight, None), activation="silu", conv_states=conv, has_initial_state=torch.tensor([True]),
        cache_indices=slots, query_start_loc=offsets, seq_lens_cpu=[len(x)],
    ).T  # fmt: skip
    q, k, v = _rows(kda, x, carried)
    table.add("KDA", "convolution, carried state", KERNEL, torch.cat((q, k, v), -2).flatten(2)[0], mixed)
    y_states = torch.stack((torch.zeros_like(carried.memory), carried.memory))
    a, b = _gate(kda, x)
    out = TritonKDAKernel().extend(
        *(q.clone(), k.clone(), v.clone(), a, b.sigmoid()), A_log=kda.A_log, dt_bias=kda.dt_bias,
        ssm_states=y_states, cache_indices=slots, query_start_loc=offsets, lower_bound=kda.bound,
    )  # fmt: skip
    ours, after = _ours(kda, x, carried)
    table.add("KDA", f"delta rule, {what}", KERNEL, ours, (out[0] if isinstance(out, tuple) else out)[0])
    table.add("KDA", f"memory, {what}", KERNEL, after, y_states[1])


def _ours(kda: Kda, x: Tensor, carried: KdaState) -> tuple[Tensor, Tensor]:
    seen: list[Tensor] = []
    hook = kda.o_norm.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    _, step = kda(x, carried)
    hook.remove()
    return seen[0].transpose(0, 1), step.state(len(x)).memory


def _verified(kda: Kda, table: Table, x: Tensor, carried: KdaState) -> None:
    """The verify kernel keeps the memory behind every row; ours is what a commit of so many rows leaves."""
    q, k, v = _rows(kda, x, carried)
    a, b = _gate(kda, x)
    states = torch.stack((torch.zeros_like(carried.memory), carried.memory))
    steps = torch.zeros(2, len(x), *carried.memory.shape)
    out = TritonKDAKernel().target_verify(
        *(kda.A_log, kda.dt_bias, q, k, v, a, b), ssm_states=states, cache_indices=torch.tensor([1], dtype=torch.int32),
        query_start_loc=torch.tensor([0, len(x)], dtype=torch.int32), intermediate_states_buffer=steps,
        intermediate_state_indices=torch.tensor([1], dtype=torch.int32), cache_steps=len(x),
        retrieve_parent_token=None, lower_bound=kda.bound,
    )  # fmt: skip
    ours, _after = _ours(kda, x, carried)
    table.add("KDA", "delta rule, verify of drafts", KERNEL, ours, out[0])
    _, step = kda(x, carried)
    kept = torch.stack([step.state(rows).memory for rows in range(1, len(x) + 1)])
    table.add("KDA", "memory behind each verified row", KERNEL, kept, steps[1])
    table.add("KDA", "memory untouched by a verify", KERNEL, carried.memory, states[1])


def _router(moe: Moe, table: Table, x: Tensor) -> None:
    """With the real scaling factor, as kernels fold it into the weights."""
    gate, scale = moe.gate, 2.5
    scores = F.linear(x, gate.weight)
    weights, ids = biased_grouped_topk_impl(
        x, scores, gate.expert_bias, gate.chosen, renormalize=True, num_expert_group=gate.groups,
        topk_group=gate.kept, routed_scaling_factor=scale, apply_routed_scaling_factor_on_output=True,
    )  # fmt: skip
    mine, empty = gate(x), torch.zeros_like(scores)
    ours = empty.scatter(1, mine[0], mine[1] / gate.scale * scale)
    table.add("MoE", "router with scaling", FUNCTION, ours, empty.scatter(1, ids.long(), weights))


def _clamped(table: Table, drawing: torch.Generator) -> None:
    x = torch.randn(64, 64, generator=drawing) * 4
    glu = Glu(64, 64, 1.5, torch.float32).to_empty(device="cpu")
    gate, up = (torch.randn(64, 64, generator=drawing) for _ in range(2))
    for parameter, value in zip(glu.parameters(), (gate, up, torch.eye(64)), strict=True):
        parameter.copy_(value)
    theirs = _swiglu_silu_clamp_mul(torch.cat((x @ gate.T, x @ up.T), -1), 1.5)
    table.add("MoE", "clamp of routed experts", FUNCTION, glu(x), theirs)


def _accepted(table: Table, drawing: torch.Generator) -> None:
    candidates = torch.randint(0, 3, (200, VERIFIED), generator=drawing)
    predicted = torch.randint(0, 3, (200, VERIFIED), generator=drawing)
    predicted[:100, :5] = candidates[:100, 1:6]
    correct, bonus = compute_dflash_correct_drafts_and_bonus(candidates=candidates, target_predict=predicted)
    pairs = zip(candidates.tolist(), predicted.tolist(), strict=True)
    ours = [(n := accept_prefix(drafts[1:], choices), choices[n]) for drafts, choices in pairs]
    table.add(
        "speculation", "drafts kept, and the next id", FUNCTION, torch.tensor(ours), torch.stack((correct, bonus), 1)
    )
