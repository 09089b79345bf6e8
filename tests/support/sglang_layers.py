"""Our layers against SGLang's modules, each given what SGLang's was given. Loaded in SGLang's environment.

`Follower` walks beside SGLang through prefill and decode: the inputs are SGLang's in every layer, so that a difference
shows where it arises; states and caches are our own, so that a wrong one shows in the next step.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from tests.support.sglang_table import Table
from tests.support.sglang_tape import Call
from torch import Tensor, nn
from torch.nn import functional as F

from ling_engine.reference import mla
from ling_engine.reference.kda import Kda
from ling_engine.reference.layers import Norm, rotate
from ling_engine.reference.mla import Mla
from ling_engine.reference.model import Block, Ling
from ling_engine.reference.moe import Glu, Moe
from ling_engine.reference.sequence import Sequence, Step

TORCH = "module, torch"
TRITON = "module, Triton interpreted"
Tape = dict[str, Call]


def norm_input(call: Call) -> Tensor:
    """What is normed: SGLang's norms add the residual themselves."""
    x, *residual = (*call.inputs, *call.named.values())
    return x + residual[0] if residual and isinstance(residual[0], Tensor) else x


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def norm(table: Table, part: str, what: str, ours: Norm, call: Call) -> None:
    table.add(part, what, TORCH, ours(norm_input(call)), first(call.output))


def glu(table: Table, part: str, what: str, ours: Glu, call: Call) -> None:
    table.add(part, what, TORCH, ours(call.inputs[0]), call.output)


def moe(table: Table, part: str, ours: Moe, tape: Tape, name: str) -> None:
    """Router, routed experts, the shared one, and their sum."""
    call = tape[name]
    x = call.inputs[0]
    scores = F.linear(x, ours.gate.weight)
    table.add(part, "router scores", TORCH, scores, tape[name + ".gate"].output)
    ids, weights = ours.gate(x)
    chosen = tape[name + ".topk"].output
    empty = torch.zeros_like(scores)
    theirs = empty.scatter(1, chosen.topk_ids.long(), chosen.topk_weights.float())
    # SGLang scales behind the experts, we in the weights
    table.add(part, "chosen experts' weights", TORCH, empty.scatter(1, ids, weights / ours.gate.scale), theirs)
    glu(table, part, "shared expert", ours.shared_experts, tape[name + ".shared_experts"])
    routed = ours(x) - ours.shared_experts(x)
    table.add(part, "routed experts", TORCH, routed, first(tape[name + ".experts"].output))
    table.add(part, "layer", TORCH, ours(x), call.output)


@dataclass(slots=True)
class Follower:
    """Our model beside SGLang's runner, one sequence."""

    model: Ling
    sequence: Sequence
    table: Table
    pools: Any  # SGLang's runner
    slot: Any = None  # SGLang's index of the sequence's KDA states
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # of its cache, by position

    def seat(self, made: Any) -> None:
        """Where SGLang keeps the request; it may have got more places since."""
        pool = self.pools.req_to_token_pool
        self.slot = made.kv.mamba_pool_idx
        self.rows = pool.req_to_token[made.kv.req_pool_idx, : self.sequence.context].long()

    def step(self, tape: Tape, ids: Tensor, prefix: str = "model.") -> None:
        """Compares every module of one forward pass and commits its rows."""
        table, done = self.table, {}
        start, end = self.sequence.length, self.sequence.length + len(ids)
        table.add("embedding", "rows", TORCH, self.model.embed(ids), tape[prefix + "word_embeddings"].output)
        for i, module in enumerate(self.model.model.layers):
            name, block = f"{prefix}layers.{i}.", module
            assert isinstance(block, Block)
            norm(table, "norm", "before attention", block.input_layernorm, tape[name + "input_layernorm"])
            if isinstance(block.attention, Kda):
                done[i] = self._kda(block.attention, i, tape, name + "attention")
            else:
                mla_layer(table, "MLA", block.attention, self.sequence, i, tape, name + "attention")
                cache = self.pools.token_to_kv_pool.get_key_buffer(i)[self.rows[start:end]].flatten(1)
                table.add("MLA", "cache rows c and r", TORCH, self.sequence.caches[i][start:end], cache)
            norm(
                table,
                "norm",
                "before feed-forward",
                block.post_attention_layernorm,
                tape[f"{name}post_attention_layernorm"],
            )
            if isinstance(block.mlp, Moe):
                moe(table, "MoE", block.mlp, tape, name + "mlp")
            else:
                glu(table, "dense", "layer", block.mlp, tape[name + "mlp"])
        norm(table, "norm", "last", self.model.model.norm, tape[prefix + "norm"])
        self.sequence.commit(Step(torch.empty(0), done), len(ids))
        self._states()

    def _kda(self, ours: Kda, layer: int, tape: Tape, name: str) -> Any:
        table, call = self.table, tape[name]
        x = call.named["hidden_states"]
        projected = torch.cat(
            [p(x) for p in (ours.q_proj, ours.k_proj, ours.v_proj, ours.b_proj, ours.f_proj, ours.g_proj)], -1
        )
        table.add("KDA", "projections", TORCH, projected, first(tape[name + ".fused_qkvbfg_proj"].output))
        with inputs_of(ours.o_norm, ours.o_proj) as seen:
            y, step = ours(x, self.sequence.kda[layer])
        out, gated = seen
        form = "chunked (prefill)" if len(x) > 1 else "recurrent (decode)"
        theirs = first(tape[name + ".attn"].output).reshape(len(x), -1)
        table.add("KDA", f"convolution, gates, delta rule: {form}", TRITON, out.transpose(0, 1).flatten(1), theirs)
        theirs = first(tape[name + ".o_norm"].output).reshape(len(x), -1)
        table.add("KDA", "norm and output gate", TRITON, gated, theirs)
        table.add("KDA", "layer", TRITON, y, call.output)
        return step

    def _states(self) -> None:
        for layer, state in self.sequence.kda.items():
            pool = self.pools.req_to_token_pool.mamba2_layer_cache(layer)
            conv, memory = pool.conv[0][self.slot], pool.temporal[self.slot]
            self.table.add(
                "KDA", "state: last inputs of the convolution", TRITON, state.conv, conv.view(state.conv.shape)
            )
            self.table.add("KDA", "state: memory", TRITON, state.memory, memory.view(state.memory.shape))


def mla_layer(table: Table, part: str, ours: Mla, sequence: Sequence, layer: int, tape: Tape, name: str) -> None:
    """Both of our forms, whichever SGLang took; writes the cache rows."""
    call = tape[name]
    x = call.named["hidden_states"]
    start, cache = sequence.length, sequence.caches[layer]
    turn = sequence.turns[start : start + len(x)]
    table.add(part, "query projection", TORCH, ours.q_proj(x), first(tape[name + ".q_proj"].output))
    latent = ours.kv_a_proj_with_mqa(x)
    table.add(part, "latent projection", TORCH, latent, first(tape[name + ".kv_a_proj_with_mqa"].output))
    rotary = tape[name + ".rotary_emb"]
    _positions, query, key = rotary.inputs[:3]
    theirs_q, theirs_k = rotary.output
    table.add(part, "rope of queries", TORCH, rotate(query, turn), theirs_q)
    table.add(part, "rope of keys", TORCH, rotate(key.view(len(x), 1, -1), turn), theirs_k.view(len(x), 1, -1))
    gate = ours.g_proj(x).float().sigmoid()
    table.add(part, "output gate", TORCH, gate, first(tape[name + ".g_proj"].output).sigmoid())
    expanded = name + ".attn_mha" in tape
    for form, up_to in (("absorbed", 1 << 30), ("plain", 0)):
        with mock.patch.object(mla, "ABSORB_UP_TO", up_to):
            y = ours(x, start, cache, sequence.turns)
        theirs = "SGLang's plain" if expanded else "SGLang's absorbed"
        table.add(part, f"layer: our {form}, {theirs}", TRITON, y, call.output)


@contextlib.contextmanager
def inputs_of(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """What these modules are given inside the block, in that order."""
    seen: list[Tensor] = []
    hooks = [m.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0])) for m in modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
