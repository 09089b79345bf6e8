"""The whole model against a second, independent derivation, and generation by steps against recomputation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.checkpoints import greedy, loaded, save, tensors_of, tiny

from ling_engine.reference.sequence import Sequence

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ling_engine.reference.config import Config
    from ling_engine.reference.model import Ling

LIMITS: dict[str, Any] = {
    "expert_swiglu_limit_list": [None, None, 0.2, 0.3, None, 0.4],
    "share_expert_swiglu_limit_list": [None, None, None, 0.2, 0.3, 0.1],
}


class Plain:
    """The published formulae in float64, token by token, with loops: slow, and hard to get wrong."""

    def __init__(self, tensors: dict[str, Tensor], c: Config) -> None:
        self.w = {name: tensor.double() for name, tensor in tensors.items()}
        self.c = c

    def rms(self, x: Tensor, weight: str, eps: float) -> Tensor:
        return x / (x.pow(2).mean() + eps).sqrt() * self.w[weight]

    def kda(self, xs: list[Tensor], p: str) -> list[Tensor]:
        c, w = self.c, self.w
        heads, width = c.num_attention_heads, c.head_dim
        past = [[torch.zeros(heads * width, dtype=torch.float64)] * 3 for _ in "qkv"]
        memory = torch.zeros(heads, width, width, dtype=torch.float64)
        out = []
        for x in xs:
            mixed = []
            for i, name in enumerate("qkv"):
                past[i] = [*past[i][-3:], w[f"{p}{name}_proj.weight"] @ x]
                taps = w[f"{p}{name}_conv1d.weight"]
                z = sum(taps[:, 0, j] * past[i][j] for j in range(4))
                mixed.append((z * torch.sigmoid(z)).view(heads, width))
            f = (w[f"{p}f_proj.weight"] @ x + w[f"{p}dt_bias"]).view(heads, width)
            gate = torch.sigmoid(w[f"{p}g_proj.weight"] @ x).view(heads, width)
            beta = torch.sigmoid(w[f"{p}b_proj.weight"] @ x)
            rows = []
            for h in range(heads):
                q, k, v = (m[h] for m in mixed)
                q = q / (q.pow(2).sum() + 1e-6).sqrt() / math.sqrt(width)
                k = k / (k.pow(2).sum() + 1e-6).sqrt()
                decay = torch.exp(c.kda_lower_bound * torch.sigmoid(torch.exp(w[f"{p}A_log"][h]) * f[h]))
                s = memory[h] * decay
                memory[h] = s + torch.outer(beta[h] * (v - s @ k), k)
                rows.append(self.rms(memory[h] @ q, f"{p}o_norm.weight", 1e-6) * gate[h])
            out.append(w[f"{p}o_proj.weight"] @ torch.cat(rows))
        return out

    def rope(self, x: Tensor, position: int) -> Tensor:
        y = x.clone()
        for j in range(len(x) // 2):
            angle = position * self.c.rope_theta ** (-2 * j / len(x))
            a, b = x[2 * j], x[2 * j + 1]
            y[2 * j] = a * math.cos(angle) - b * math.sin(angle)
            y[2 * j + 1] = b * math.cos(angle) + a * math.sin(angle)
        return y

    def mla(self, xs: list[Tensor], p: str) -> list[Tensor]:
        c, w = self.c, self.w
        heads, nope, value = c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
        keys: list[Tensor] = []
        values: list[Tensor] = []
        out = []
        for position, x in enumerate(xs):
            q = (w[f"{p}q_proj.weight"] @ x).view(heads, -1)
            both = w[f"{p}kv_a_proj_with_mqa.weight"] @ x
            latent = self.rms(both[: c.kv_lora_rank], f"{p}kv_a_layernorm.weight", c.rms_norm_eps)
            expanded = (w[f"{p}kv_b_proj.weight"] @ latent).view(heads, nope + value)
            turned = self.rope(both[c.kv_lora_rank :], position).expand(heads, -1)
            keys.append(torch.cat((expanded[:, :nope], turned), -1))
            values.append(expanded[:, nope:])
            gate = torch.sigmoid(w[f"{p}g_proj.weight"] @ x)
            rows = []
            for h in range(heads):
                query = torch.cat((q[h, :nope], self.rope(q[h, nope:], position)))
                scores = torch.stack([k[h] @ query for k in keys]) / math.sqrt(nope + c.qk_rope_head_dim)
                weights = torch.softmax(scores, 0)
                rows.append(sum(a * v[h] for a, v in zip(weights, values, strict=True)) * gate[h])
            out.append(w[f"{p}dense.weight"] @ torch.cat(rows))
        return out

    def glu(self, x: Tensor, p: str, limit: float | None) -> Tensor:
        a = self.w[f"{p}gate_proj.weight"] @ x
        a, b = a * torch.sigmoid(a), self.w[f"{p}up_proj.weight"] @ x
        if limit is not None:
            a, b = torch.minimum(a, torch.tensor(limit)), torch.clip(b, -limit, limit)
        return self.w[f"{p}down_proj.weight"] @ (a * b)

    def moe(self, x: Tensor, p: str, layer: int) -> Tensor:
        c = self.c
        scores = torch.sigmoid(self.w[f"{p}gate.weight"] @ x)
        biased = (scores + self.w[f"{p}gate.expert_bias"]).tolist()
        size = c.num_experts // c.n_group
        best = sorted(range(c.n_group), key=lambda g: -sum(sorted(biased[g * size : g * size + size])[-2:]))
        allowed = [e for g in best[: c.topk_group] for e in range(g * size, g * size + size)]
        chosen = sorted(allowed, key=lambda e: -biased[e])[: c.num_experts_per_tok]
        total = sum(scores[e] for e in chosen)
        y = sum(scores[e] / total * self.glu(x, f"{p}experts.{e}.", c.expert_limits[layer]) for e in chosen)
        return c.routed_scaling_factor * y + self.glu(x, f"{p}shared_experts.", c.shared_limits[layer])

    def hidden(self, ids: list[int]) -> Tensor:
        c = self.c
        hs = [self.w["model.word_embeddings.weight"][i] for i in ids]
        for layer in range(c.num_hidden_layers):
            p = f"model.layers.{layer}."
            normed = [self.rms(h, f"{p}input_layernorm.weight", c.rms_norm_eps) for h in hs]
            attend = self.mla if layer % 6 == 5 else self.kda
            hs = [h + y for h, y in zip(hs, attend(normed, f"{p}attention."), strict=True)]
            for t, h in enumerate(hs):
                x = self.rms(h, f"{p}post_attention_layernorm.weight", c.rms_norm_eps)
                hs[t] = h + (self.glu(x, f"{p}mlp.", None) if layer < 2 else self.moe(x, f"{p}mlp.", layer))
        return torch.stack([self.rms(h, "model.norm.weight", c.rms_norm_eps) for h in hs])


@pytest.mark.parametrize("keys", [{}, LIMITS], ids=["no-clamp", "clamps"])
def test_hidden_rows_equal_an_independent_derivation(tmp_path: Path, keys: dict[str, Any]) -> None:
    tiny(tmp_path, **keys)
    model, c = loaded(tmp_path)
    ids = [72, 101, 108, 108, 111, 0, 255, 257, 32, 119, 9, 9, 9, 1, 2, 3, 4, 5, 6]
    wanted = Plain(tensors_of(tmp_path), c).hidden(ids)
    found = model(torch.tensor(ids), Sequence.allocate(c, 64)).hidden.double()
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= 1e-5


def test_clamps_change_the_answer(tmp_path: Path) -> None:
    """Otherwise the case above would prove nothing about them."""
    tiny(tmp_path / "a")
    tiny(tmp_path / "b", **LIMITS)
    rows = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        model, c = loaded(folder)
        rows.append(model(torch.tensor([1, 2, 3]), Sequence.allocate(c, 8)).hidden)
    assert not torch.allclose(*rows, rtol=1e-3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ling, Config]:
    folder = tmp_path_factory.mktemp("model")
    tiny(folder, seed=5)
    return loaded(folder)


def recomputed(model: Ling, c: Config, prompt: list[int], answer: list[int]) -> list[int]:
    """What a forward pass over prompt and answer at once says at each place of the answer."""
    step = model(torch.tensor([*prompt, *answer[:-1]]), Sequence.allocate(c, 512))
    return [int(token) for token in model.logits(step.hidden[len(prompt) - 1 :]).argmax(-1)]


@pytest.mark.parametrize("length", [1, 2, 8, 15, 17, 40])
def test_generation_by_steps_equals_recomputation(small: tuple[Ling, Config], length: int) -> None:
    model, c = small
    prompt = [(7 * i) % 250 for i in range(length)]
    found = list(greedy(model, Sequence.allocate(c, 512), prompt, 12, None, lambda: True))
    assert found == recomputed(model, c, prompt, found)


def test_a_prompt_longer_than_a_piece_equals_the_whole(small: tuple[Ling, Config]) -> None:
    model, c = small
    prompt = [(11 * i) % 256 for i in range(300)]
    sequence = Sequence.allocate(c, 512)
    found = list(greedy(model, sequence, prompt, 3, None, lambda: True))
    assert sequence.length == 302
    assert found == recomputed(model, c, prompt, found)


def test_a_sequence_starts_afresh(small: tuple[Ling, Config]) -> None:
    model, c = small
    sequence = Sequence.allocate(c, 64)
    first = list(greedy(model, sequence, [1, 2, 3], 8, None, lambda: True))
    assert list(greedy(model, sequence, [200] * 20, 8, None, lambda: True)) != first
    assert list(greedy(model, sequence, [1, 2, 3], 8, None, lambda: True)) == first


def test_a_step_that_is_not_committed_leaves_no_trace(small: tuple[Ling, Config]) -> None:
    """What a verify of refused drafts relies on."""
    model, c = small
    sequence = Sequence.allocate(c, 64)
    sequence.commit(model(torch.tensor([5, 6, 7]), sequence), 3)
    before = model(torch.tensor([8]), sequence).hidden
    model(torch.tensor([9, 10, 11, 12, 13]), sequence)
    assert torch.equal(model(torch.tensor([8]), sequence).hidden, before)


def test_generation_ends_at_eos_at_the_limit_and_when_unwanted(small: tuple[Ling, Config]) -> None:
    model, c = small
    sequence = Sequence.allocate(c, 64)
    whole = list(greedy(model, sequence, [1, 2, 3], 10, None, lambda: True))
    eos = whole[4]
    first = whole.index(eos)
    assert list(greedy(model, sequence, [1, 2, 3], 10, eos, lambda: True)) == whole[: first + 1]
    steps = iter([True, True, True, False])
    assert list(greedy(model, sequence, [1, 2, 3], 10, None, lambda: next(steps))) == whole[:3]


def test_bf16_runs_and_stays_near_fp32(tmp_path: Path) -> None:
    tiny(tmp_path / "wide")
    tiny(tmp_path / "short", torch_dtype="bfloat16")
    (wide, c), (short, d) = loaded(tmp_path / "wide"), loaded(tmp_path / "short")
    ids = torch.tensor(list(range(60, 84)))
    one, two = wide(ids, Sequence.allocate(c, 32)).hidden, short(ids, Sequence.allocate(d, 32)).hidden
    assert two.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(one, two.float(), dim=-1).median() > 0.95


def test_layers_can_be_listed_one_by_one(tmp_path: Path) -> None:
    tiny(tmp_path / "a", seed=3)
    tiny(tmp_path / "b", seed=3, layer_group_size=[1, 1, 1, 1, 1, 0])
    answers = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        model, c = loaded(folder)
        answers.append(list(greedy(model, Sequence.allocate(c, 32), [1, 2], 6, None, lambda: True)))
    assert answers[0] == answers[1]


def test_dense_and_o_proj_are_the_same_tensor(tmp_path: Path) -> None:
    tiny(tmp_path)
    one, _ = loaded(tmp_path)
    tensors = tensors_of(tmp_path)
    save(tmp_path, {n.replace(".dense.", ".o_proj."): t for n, t in tensors.items()})
    two, _ = loaded(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
