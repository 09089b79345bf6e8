"""Our drafts against SGLang's: NEXTN layer and DSPARK draft, over the target's prefill. SGLang's environment."""

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.model_runner import ModelRunner
from tests.support import sglang_boot as boot
from tests.support.sglang_layers import TORCH, TRITON, mla_layer, moe, norm
from tests.support.sglang_table import Table
from tests.support.sglang_tape import record
from torch import Tensor
from torch.nn import functional as F

from ling_engine.reference.dspark import Dspark
from ling_engine.reference.layers import rotations
from ling_engine.reference.mtp import layer_config
from ling_engine.reference.sequence import Sequence, Step

if TYPE_CHECKING:
    from tests.support.sglang_parity import Ours

PART = "MTP layer"


class Nextn:
    """The MTP layer beside SGLang's: over the target's rows first, then one step further in its own chain."""

    def __init__(self, booted: boot.Booted, target: ModelRunner, ours: "Ours", table: Table, folder: str) -> None:
        self._runner = boot.draft_runner(booted, target, folder)
        self._runner.model.set_embed_and_head(*target.model.get_embed_and_head())
        self._ours, self._table = ours, table
        self._sequence = Sequence.allocate(layer_config(ours.config), 256)
        self._last = torch.empty(0)  # SGLang's hidden row that the next guess is made of
        self._guess = torch.empty(0)

    def prefill(self, batch: Any, ids: list[int], hidden: Tensor) -> None:
        """Entry p reads the id at p + 1 and the target's hidden row at p."""
        self._compare(torch.tensor(ids[1:]), hidden, batch, "all of it, behind a prefill")

    def step(self, batch: Any) -> None:
        """The second guess, of the first and the layer's own hidden row, in the place that the target got meanwhile."""
        self._compare(self._guess, self._last, batch, "all of it, a step of the chain")

    def _compare(self, ids: Tensor, hidden: Tensor, batch: Any, what: str) -> None:
        with record(self._runner.model) as tape:
            run = boot.draft_prefill if len(ids) > 1 else boot.draft_step
            scores = run(self._runner, batch, ids, hidden)
        layer, table, sequence = self._ours.mtp, self._table, self._sequence
        norm(table, PART, "norm of embeddings", layer.enorm, tape["model.enorm"])
        norm(table, PART, "norm of hidden rows", layer.hnorm, tape["model.hnorm"])
        joined = tape["model.eh_proj"]
        table.add(PART, "eh_proj", TORCH, layer.eh_proj(joined.inputs[0]), joined.output[0])
        mla_layer(table, f"{PART}, MLA", layer.attention, sequence, 0, tape, "model.decoder.attention")
        moe(table, f"{PART}, MoE", layer.mlp, tape, "model.decoder.mlp")
        norm(table, PART, "last norm", layer.final_layernorm, tape["model.final_layernorm"])
        rows = layer.predict(self._ours.target.embed(ids), hidden, sequence)
        table.add(PART, what, TRITON, rows, tape["model"].output)
        head = F.linear(rows[-1:].bfloat16(), self._ours.target.lm_head.weight.bfloat16()).float()
        table.add(PART, "scores", "module, bfloat16", head, scores)
        sequence.length += len(ids)
        self._last, self._guess = tape["model"].output[-1:], scores.argmax(-1)


def compare_dspark(
    booted: boot.Booted,
    target: ModelRunner,
    ours: "Ours",
    table: Table,
    made: Any,
    ids: list[int],
    taps: Tensor,
    folder: str,
) -> None:
    """The draft over the target's taps [rows, D · taps], then one block behind the last id."""
    runner = boot.draft_runner(booted, target, folder + "/dspark")
    runner.model.attach_shared_modules(embed_tokens=target.model.model.word_embeddings, lm_head=target.model.lm_head)
    c, n, gamma = ours.dspark_config, len(ids) - 1, ours.dspark_config.block_size
    draft = Dspark(ours.target, ours.dspark, c, gamma, n + 1)
    draft.restart()
    draft.extend(Step(torch.empty(0), {}, taps), ids[1:])
    rows = boot.cache_rows(target, made, n)
    z = ours.dspark.hidden_norm(ours.dspark.fc(taps))
    table.add("DSPARK", "projected taps", TORCH, z, runner.model.project_target_hidden(taps))
    runner.model.write_target_hidden_kv(
        target_hidden=taps, pool=runner.token_to_kv_pool, positions=torch.arange(n), cache_loc=rows
    )
    for j, cache in enumerate(draft._caches):
        pool = runner.token_to_kv_pool
        table.add("DSPARK", "context keys", TORCH, cache[0, :n], pool.get_key_buffer(j)[rows])
        table.add("DSPARK", "context values", TORCH, cache[1, :n], pool.get_value_buffer(j)[rows])
    block = [ids[-1], *[c.mask_token_id] * (gamma - 1)]
    with record(runner.model) as tape:
        hidden = boot.block_forward(runner, made, block)
    turns = rotations(n + gamma, c.head_dim, c.rope_theta)
    for j, (layer, cache) in enumerate(zip(ours.dspark.blocks(), draft._caches, strict=True)):
        call = tape[f"layers.{j}"]
        _positions, h, _batch, residual = call.inputs
        out, left = call.output
        h = h if residual is None else h + residual
        table.add("DSPARK", "layer", TRITON, layer(h, n, cache.clone(), turns), out + left)
        attention = tape[f"layers.{j}.self_attn"]
        x = attention.named["hidden_states"]
        view = cache.clone()
        layer.self_attn.write(x, view[:, n : n + gamma], turns[n:])
        table.add("DSPARK", "attention", TRITON, layer.self_attn(x, view[:, : n + gamma], turns[n:]), attention.output)
    norm(table, "DSPARK", "last norm", ours.dspark.norm, tape["norm"])
    _heads(runner, ours, draft, table, hidden, ids[-1])


def _heads(runner: ModelRunner, ours: "Ours", draft: Dspark, table: Table, hidden: Tensor, anchor: int) -> None:
    """Base scores, Markov bias, and the chain of guesses that SGLang's own greedy step makes of them."""
    base, _features = runner.model.compute_base_logits(hidden)
    head = ours.target.lm_head.weight.bfloat16()
    table.add("DSPARK", "scores", "module, bfloat16", F.linear(hidden.bfloat16(), head).float(), base.float())
    markov = runner.model.markov_head
    for before in (anchor, 0, 17):
        bias, _ = markov.step_bias(torch.tensor([before]), hidden_states=None, state=None)
        table.add("DSPARK", "Markov bias", TORCH, ours.dspark.markov_head(before)[None], bias)
    found, before = [], torch.tensor([anchor])
    for row in base.float():
        bias, _ = markov.step_bias(before, hidden_states=None, state=None)
        before = (row + bias).argmax(-1)
        found.append(int(before))
    proposed = draft.propose(lambda scores, _at: scores.argmax(-1).tolist())
    table.add("DSPARK", "guesses", "function, torch", torch.tensor(proposed), torch.tensor(found))
