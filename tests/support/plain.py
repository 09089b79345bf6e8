"""The published formulae once more, in the plainest way: what the engine's models are held against."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ling_engine.reference.config import Config
    from ling_engine.reference.dspark_config import DsparkConfig


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
        return torch.stack([self.rms(h, "model.norm.weight", self.c.rms_norm_eps) for h in self.streams(ids)[-1]])

    def streams(self, ids: list[int]) -> list[list[Tensor]]:
        """The stream behind each layer."""
        c, after = self.c, []
        hs = [self.w["model.word_embeddings.weight"][i] for i in ids]
        for layer in range(c.num_hidden_layers):
            p = f"model.layers.{layer}."
            normed = [self.rms(h, f"{p}input_layernorm.weight", c.rms_norm_eps) for h in hs]
            attend = self.mla if not c.kda[layer] else self.kda
            hs = [h + y for h, y in zip(hs, attend(normed, f"{p}attention."), strict=True)]
            for t, h in enumerate(hs):
                x = self.rms(h, f"{p}post_attention_layernorm.weight", c.rms_norm_eps)
                hs[t] = h + (
                    self.glu(x, f"{p}mlp.", None) if layer < c.first_k_dense_replace else self.moe(x, f"{p}mlp.", layer)
                )
            after.append(list(hs))
        return after

    def nextn(self, ids: list[int], hidden: list[Tensor]) -> Tensor:
        """Rows for the head: entry p joins the token at p + 1 with the target's row p; `ids` are those tokens."""
        c, p = self.c, f"model.layers.{self.c.num_hidden_layers}."
        hs = []
        for token, row in zip(ids, hidden, strict=True):
            e = self.rms(self.w["model.word_embeddings.weight"][token], f"{p}enorm.weight", c.rms_norm_eps)
            r = self.rms(row, f"{p}hnorm.weight", c.rms_norm_eps)
            hs.append(self.w[f"{p}eh_proj.weight"] @ torch.cat((e, r)))
        normed = [self.rms(h, f"{p}input_layernorm.weight", c.rms_norm_eps) for h in hs]
        hs = [h + y for h, y in zip(hs, self.mla(normed, f"{p}attention."), strict=True)]
        for t, h in enumerate(hs):
            x = self.rms(h, f"{p}post_attention_layernorm.weight", c.rms_norm_eps)
            hs[t] = h + self.moe(x, f"{p}mlp.", 0)
        return torch.stack([self.rms(h, f"{p}final_layernorm.weight", c.rms_norm_eps) for h in hs])


class PlainDspark:
    """The same for a DSPARK draft beside its target."""

    def __init__(self, target: Plain, tensors: dict[str, Tensor], d: DsparkConfig) -> None:
        self.t, self.w, self.d = target, {name: tensor.double() for name, tensor in tensors.items()}, d

    def rms(self, x: Tensor, weight: str) -> Tensor:
        return x / (x.pow(2).mean() + self.d.rms_norm_eps).sqrt() * self.w[weight]

    def rope(self, x: Tensor, position: int) -> Tensor:
        y, half = x.clone(), len(x) // 2
        for j in range(half):
            angle = position * self.d.rope_theta ** (-2 * j / len(x))
            y[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
            y[j + half] = x[j + half] * math.cos(angle) + x[j] * math.sin(angle)
        return y

    def heads(self, x: Tensor, name: str, count: int) -> Tensor:
        return (self.w[name] @ x).view(count, self.d.head_dim)

    def key(self, x: Tensor, p: str, position: int) -> tuple[Tensor, Tensor]:
        k = self.heads(x, f"{p}k_proj.weight", self.d.num_key_value_heads)
        k = torch.stack([self.rope(self.rms(one, f"{p}k_norm.weight"), position) for one in k])
        return k, self.heads(x, f"{p}v_proj.weight", self.d.num_key_value_heads)

    def scores(self, ids: list[int], anchor: int, drafts: list[int]) -> Tensor:
        """Of the tokens behind the anchor, which follows `ids`, each behind the drafts before it."""
        d, n = self.d, len(ids)
        taps = [self.t.streams(ids)[layer] for layer in d.target_layer_ids]
        z = [
            self.rms(self.w["fc.weight"] @ torch.cat([tap[p] for tap in taps]), "hidden_norm.weight") for p in range(n)
        ]
        block = [anchor] + [d.mask_token_id] * (len(drafts) - 1)
        hs = [self.t.w["model.word_embeddings.weight"][i] for i in block]
        for layer in range(d.num_hidden_layers):
            p, a = f"layers.{layer}.", f"layers.{layer}.self_attn."
            xs = [self.rms(h, f"{p}input_layernorm.weight") for h in hs]
            seen = [self.key(row, a, at) for at, row in enumerate(z)]
            seen += [self.key(x, a, n + at) for at, x in enumerate(xs)]
            for at, x in enumerate(xs):
                q = self.heads(x, f"{a}q_proj.weight", d.num_attention_heads)
                rows = []
                for h, one in enumerate(q):
                    query = self.rope(self.rms(one, f"{a}q_norm.weight"), n + at)
                    group = h * d.num_key_value_heads // d.num_attention_heads
                    weights = torch.softmax(torch.stack([k[group] @ query for k, _ in seen]) / math.sqrt(d.head_dim), 0)
                    rows.append(sum(w * v[group] for w, (_, v) in zip(weights, seen, strict=True)))
                hs[at] = hs[at] + self.w[f"{a}o_proj.weight"] @ torch.cat(rows)
            for at, h in enumerate(hs):
                x = self.rms(h, f"{p}post_attention_layernorm.weight")
                gate = self.w[f"{p}mlp.gate_proj.weight"] @ x
                up = self.w[f"{p}mlp.up_proj.weight"] @ x
                hs[at] = h + self.w[f"{p}mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
        found = []
        for h, before in zip(hs, [anchor, *drafts[:-1]], strict=True):
            bias = self.w["markov_head.markov_w2.weight"] @ self.w["markov_head.markov_w1.weight"][before]
            found.append(self.t.w["lm_head.weight"] @ self.rms(h, "norm.weight") + bias)
        return torch.stack(found)
