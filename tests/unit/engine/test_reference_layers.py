"""The two forms of KDA and of MLA agree, states carry over, and a step that is not committed leaves no trace."""

from __future__ import annotations

import pytest
import torch
from tests.support.checkpoints import TINY

from ling_engine.reference import kda
from ling_engine.reference.config import parse
from ling_engine.reference.delta import chunked, recurrent
from ling_engine.reference.layers import rotate, rotations
from ling_engine.reference.mla import Mla
from ling_engine.reference.moe import FEW_ROWS, Glu, Moe, Router


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def filled[M: torch.nn.Module](module: M, seed: int = 0) -> M:
    module.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / max(1, parameter.shape[-1]) ** 0.5)
    return module


def delta_inputs(steps: int, heads: int = 3, width: int = 8, bound: float = -5.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(steps)
    q, k, v, f = torch.randn(4, heads, steps, width, generator=generator)
    k = torch.nn.functional.normalize(k, dim=-1)
    return q, k, v, bound * torch.sigmoid(4 * f), torch.rand(heads, steps, generator=generator)


@pytest.mark.parametrize("carried", [False, True], ids=["from-nothing", "carried"])
@pytest.mark.parametrize("steps", [*range(1, 36), 47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 130])
def test_chunked_kda_equals_recurrent(steps: int, carried: bool) -> None:
    inputs = delta_inputs(steps)
    memory = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1)) if carried else torch.zeros(3, 8, 8)
    wanted, wanted_memory = recurrent(*inputs, memory)
    found, found_memory = chunked(*inputs, memory)
    assert relative(found, wanted) <= 1e-5
    assert relative(found_memory, wanted_memory) <= 1e-5


def test_chunked_kda_survives_the_strongest_decay() -> None:
    q, k, v, _, beta = delta_inputs(64)
    g = torch.full_like(q, -5.0)
    memory = torch.ones(3, 8, 8)
    wanted, _ = recurrent(q, k, v, g, beta, memory)
    found, _ = chunked(q, k, v, g, beta, memory)
    assert torch.isfinite(found).all()
    assert relative(found, wanted) <= 1e-5


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 7, 16, 19])
def test_kda_layer_carries_convolution_and_memory(cut: int) -> None:
    c = parse(TINY)
    layer = filled(kda.Kda(c, torch.float32))
    x = torch.randn(20, c.hidden_size, generator=torch.Generator().manual_seed(2))
    empty = kda.KdaState(torch.zeros(3, 3 * 64), torch.zeros(4, 16, 16))
    whole, done = layer(x, empty)
    end = done.state(20)
    first, before = layer(x[:cut], empty)
    second, after = layer(x[cut:], before.state(cut))
    other_end = after.state(20 - cut)
    assert relative(torch.cat((first, second)), whole) <= 1e-5
    assert relative(other_end.conv, end.conv) <= 1e-5
    assert relative(other_end.memory, end.memory) <= 1e-5
    assert not empty.memory.any()  # a layer never writes the state that it is given
    assert not empty.conv.any()


@pytest.mark.parametrize("kept", [1, 2, 3, 5, 8, 9])
def test_kda_replays_the_first_rows_of_a_step_and_drops_the_others(kept: int) -> None:
    c = parse(TINY)
    layer = filled(kda.Kda(c, torch.float32))
    x = torch.randn(16, c.hidden_size, generator=torch.Generator().manual_seed(4))
    _, begun = layer(x[:7], kda.KdaState(torch.zeros(3, 3 * 64), torch.zeros(4, 16, 16)))
    _, done = layer(x[7:], begun.state(7))
    _, right = layer(x[: 7 + kept], kda.KdaState(torch.zeros(3, 3 * 64), torch.zeros(4, 16, 16)))
    found, wanted = done.state(kept), right.state(7 + kept)
    assert relative(found.memory, wanted.memory) <= 1e-5
    assert relative(found.conv, wanted.conv) <= 1e-5


def mla_layer(seed: int = 3, **keys: object) -> tuple[Mla, torch.Tensor, torch.Tensor]:
    c = parse({**TINY, **keys})
    cache = torch.zeros(40, c.kv_lora_rank + c.qk_rope_head_dim)
    return filled(Mla(c, torch.float32), seed), cache, rotations(40, c.qk_rope_head_dim, c.rope_theta)


@pytest.mark.parametrize("rows", [1, 2, 8, 20])
@pytest.mark.parametrize("start", [0, 1, 17])
def test_absorbed_mla_equals_plain(rows: int, start: int) -> None:
    layer, _, _ = mla_layer()
    generator = torch.Generator().manual_seed(4)
    q_nope, q_rope = torch.randn(rows, 4, 16, generator=generator), torch.randn(rows, 4, 8, generator=generator)
    cache = torch.randn(start + rows, 64 + 8, generator=generator)
    wanted = layer.plain(q_nope, q_rope, cache, start)
    assert relative(layer.absorbed(q_nope, q_rope, cache, start), wanted) <= 1e-5


@pytest.mark.parametrize("gate", ["head_wise", "element_wise"])
@pytest.mark.parametrize("cut", [1, 5, 11, 15])
def test_mla_layer_in_two_steps_equals_one(cut: int, gate: str) -> None:
    layer, cache, turns = mla_layer(gated_attention_proj_granularity_type=gate)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(5))
    whole = layer(x, 0, cache, turns)
    other = torch.full_like(cache, 9.0)  # leftovers behind the end mean nothing
    parts = torch.cat((layer(x[:cut], 0, other, turns), layer(x[cut:], cut, other, turns)))
    assert relative(parts, whole) <= 1e-5
    assert relative(other[:16], cache[:16]) <= 1e-5
    assert (other[16:] == 9.0).all()


def test_mla_gate_per_channel_has_a_row_per_channel() -> None:
    assert mla_layer()[0].g_proj.weight.shape == (4, 64)
    assert mla_layer(gated_attention_proj_granularity_type="element_wise")[0].g_proj.weight.shape == (64, 64)


def test_rope_turns_interleaved_pairs_and_only_differences_of_positions_matter() -> None:
    turns = rotations(10, 4, 100.0)
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0]])
    found = rotate(x[None], turns[3:4])[0, 0]
    a, b = torch.tensor(3.0), torch.tensor(3.0 / 10)
    wanted = torch.stack((a.cos(), a.sin(), -2 * b.sin(), 2 * b.cos()))
    assert torch.allclose(found, wanted, atol=1e-6)
    y = torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(6))
    near = (rotate(x[None], turns[1:2]) * rotate(y, turns[4:5])).sum()
    far = (rotate(x[None], turns[6:7]) * rotate(y, turns[9:10])).sum()
    assert torch.allclose(near, far, atol=1e-5)


def brute_force_choice(scores: list[float], bias: list[float], groups: int, kept: int, chosen: int) -> list[int]:
    size = len(scores) // groups
    biased = [s + b for s, b in zip(scores, bias, strict=True)]
    value = {g: sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(groups)}
    best = sorted(value, key=lambda g: -value[g])[:kept]
    allowed = [e for e in range(len(scores)) if e // size in best]
    return sorted(allowed, key=lambda e: -biased[e])[:chosen]


@pytest.mark.parametrize("seed", range(8))
def test_router_chooses_like_brute_force_and_weighs_without_bias(seed: int) -> None:
    c = parse({**TINY, "num_experts": 24, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 5})
    router = filled(Router(c), seed)
    router.expert_bias.data.mul_(3)
    x = 4 * torch.randn(9, 64, generator=torch.Generator().manual_seed(seed))
    ids, weights = router(x)
    scores = torch.sigmoid(x @ router.weight.T)
    for row in range(9):
        wanted = brute_force_choice(scores[row].tolist(), router.expert_bias.tolist(), 4, 2, 5)
        assert ids[row].tolist() == wanted
        plain = scores[row, wanted]
        assert torch.allclose(weights[row], 2.5 * plain / plain.sum(), rtol=1e-5)


@pytest.mark.parametrize(("spelled", "dtype"), [(None, "float32"), ("fp32", "float32"), ("bf16", "bfloat16")])
def test_router_dtype_decides_the_gate_alone(spelled: str | None, dtype: str) -> None:
    c = parse({**TINY, "router_dtype": spelled, "torch_dtype": "bfloat16"})
    moe = Moe(c, 2, torch.bfloat16)
    assert str(moe.gate.weight.dtype) == f"torch.{dtype}"
    assert moe.gate.expert_bias.dtype == torch.float32
    assert moe.shared_experts.up_proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS, FEW_ROWS + 1, 40])
def test_moe_adds_weighed_experts_and_the_unscaled_shared_one(rows: int) -> None:
    moe = filled(Moe(parse(TINY), 2, torch.float32))
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))
    ids, weights = moe.gate(x)
    wanted = moe.shared_experts(x)
    for row, chosen, shares in zip(range(rows), ids.tolist(), weights, strict=True):
        for expert, share in zip(chosen, shares, strict=True):
            wanted[row] += share * moe.experts[expert](x[row, None])[0]
    assert relative(moe(x), wanted) <= 1e-5


def test_clamp_is_after_silu_from_above_and_on_both_sides_of_up() -> None:
    glu = Glu(1, 3, 2.0, torch.float32)
    glu.to_empty(device="cpu")
    glu.gate_proj.weight.data[:] = torch.tensor([[9.0], [1.0], [-9.0]])
    glu.up_proj.weight.data[:] = torch.tensor([[9.0], [-9.0], [1.0]])
    glu.down_proj.weight.data[:] = torch.tensor([[1.0, 10.0, 100.0]])
    silu = torch.nn.functional.silu(torch.tensor([1.0, -9.0])).tolist()
    wanted = 2.0 * 2.0 + 10 * silu[0] * -2.0 + 100 * silu[1] * 1.0
    assert glu(torch.ones(1, 1)).item() == pytest.approx(wanted, rel=1e-6)


def test_limits_go_to_their_layers_and_their_kind_of_expert() -> None:
    routed, shared = [None, None, 1.5, 0, 3.0, None], [None, None, 0.5, 4.0, None, 0]
    c = parse({**TINY, "expert_swiglu_limit_list": routed, "share_expert_swiglu_limit_list": shared})
    layers = [Moe(c, layer, torch.float32) for layer in range(2, 6)]
    assert [moe.experts[0].limit for moe in layers] == [1.5, None, 3.0, None]
    assert [moe.shared_experts.limit for moe in layers] == [0.5, 4.0, None, None]
