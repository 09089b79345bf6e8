"""Our kernels of few rows beside SGLang's own functions, interpreted. `MODEL RESULT`: a checkpoint, a file for JSON."""

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks import few_rows as bench
from benchmarks import few_rows_layer, moe_kernel, moe_plan
from sglang.kernels.ops.attention.linear import fused_kda_conv_recurrent_verify as verify
from sglang.kernels.ops.attention.linear import fused_sigmoid_gating_recurrent as kda
from sglang.kernels.ops.attention.linear import kda_replayssm_spec_decode as replays
from sglang.kernels.ops.speculative.dspark import fused_kv_write
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from sglang.srt.plugins import load_plugins
from tests.support.experts import chosen, summed
from tests.support.sglang_guards import missing
from tests.support.sglang_moe import GPU, aligned

from ling_engine.kernels import plans, router
from ling_engine.kernels.experts import Experts
from ling_engine.kernels.plans import Choice, Plan
from ling_engine.sglang import few_rows, hook_variables

TINY = "17x32"
HIDDEN = 96  # no power of two, as Flash has none
LIMIT = 0.002  # of gate and up: cuts most of what these weights make


def layer(limit: float | None = None) -> few_rows_layer.Layer:
    (case,) = moe_plan.cases(TINY)
    return few_rows_layer.Layer(case, hidden=HIDDEN, chosen=3, device="cpu", dtype=torch.bfloat16, limit=limit)


def plainly(*args: Any, **named: Any) -> torch.Tensor:
    """What SGLang registers as an operator of CUDA alone: the same without a name."""
    return fused_moe.fused_experts_impl(*args[:7], False, *args[7:], **named)


def choices() -> dict[str, bool]:
    """By case, whether the kernel chooses by the definition."""
    flash = Choice(chosen=8, slots=9, groups=8, of_groups=4, scale=2.5)
    torch.manual_seed(0)
    scores, bias = torch.randn(4, 512), torch.randn(512) / 10
    ties = (scores * 2).round() / 2
    cases = {
        "Flash": (scores, bias, flash),
        "ties": (ties, torch.zeros(512), flash),
        "negative ranks": (scores, bias - 2, flash),
        "scaled": (scores, bias, replace(flash, scaled=True)),
        "as they are": (scores, bias, replace(flash, renormalize=False)),
        "none shared": (scores, bias, replace(flash, slots=8)),
        "groups of 3": (scores[:, :24].contiguous(), bias[:24], replace(flash, chosen=2, slots=3)),
    }
    found = {}
    for name, (given, shift, choice) in cases.items():
        weights, ids = router.choose(given, shift, choice, pdl=False)
        right, experts = chosen(given, shift, choice)
        found[name] = torch.equal(ids, experts) and torch.allclose(weights, right.float(), rtol=1e-5)
    weights, ids = router.choose(scores, bias, flash, torch.tensor(3, dtype=torch.int32), pdl=False)
    right, experts = chosen(scores, bias, flash)
    found["padded"] = torch.equal(ids[:3], experts[:3]) and ids[3].tolist() == [-1] * 9 and not weights[3].any()
    return found


def left_out() -> float:
    """The largest value of a row whose experts are none, beside one that has some."""
    torch.manual_seed(0)
    layer = Experts(torch.randn(3, 64, 32).bfloat16(), torch.randn(3, 32, 32).bfloat16())
    x = torch.randn(2, 32).bfloat16()
    ids = torch.tensor([[0, 2], [-1, -1]], dtype=torch.int32)
    up, found = Plan(columns=16, summands=32), []
    for parts in (1, 4):  # 4 programs share two experts, or none
        down = Plan(columns=16, summands=32, parts=parts)
        out, none = torch.full_like(x, 7), torch.full_like(x, 7)
        for _ in range(2):  # counters are as they were
            layer(x, torch.ones(2, 2), ids, out, scale=1.0, plans=(up, down), pdl=False)
        wanted = summed(x[:1], layer.up, layer.down, torch.ones(1, 2), ids[:1], 1.0, None).float()
        assert (out[:1].float() - wanted).abs().max() < 0.02 * wanted.abs().max()
        layer(x, torch.ones(2, 2), torch.full_like(ids, -1), none, scale=1.0, plans=(up, down), pdl=False)
        found += [out[1:], none]
    return float(torch.cat(found).abs().max())


def recurrence() -> dict[str, Any]:
    """A step of KDA with SGLang's columns of a program and with ours: bits of results and states, and the columns."""
    heads, width = 2, 128
    columns = []

    def stepped(choose: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        make = lambda *size: torch.randn(*size)  # noqa: E731
        q, k, v, a = (make(1, 1, heads, width) for _ in range(4))
        states = make(3, heads, width, width)
        with mock.patch.object(kda, "_select_recurrent_launch_config", choose):
            out = kda.fused_sigmoid_gating_delta_rule_update(
                A_log=make(heads), dt_bias=make(heads * width), q=q, k=k, v=v, a=a.view(1, heads * width),
                b=make(1, heads), initial_state_source=states, initial_state_indices=torch.tensor([1]),
                cu_seqlens=torch.tensor([0, 1], dtype=torch.int32), use_qk_l2norm_in_kernel=True, softplus_beta=1.0,
                softplus_threshold=20.0, is_kda=True, lower_bound=-5.0,
            )  # fmt: skip
        return [out, states]

    usual = kda._select_recurrent_launch_config

    def noted(original: Any) -> Any:
        def choose(*args: Any, **named: Any) -> tuple[int, int]:
            found: tuple[int, int] = original(*args, **named)
            columns.append(found[0])
            return found

        return choose

    before = stepped(noted(usual))
    after = stepped(noted(functools.partial(few_rows.narrow, usual)))
    many = few_rows.narrow(usual, 2, heads, heads, width, width, True)
    other = few_rows.narrow(usual, 1, heads, heads, width, width, False)
    return {
        "equal": all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "columns": columns,
        "other": [many, other], "moved": not torch.equal(before[1], torch.zeros_like(before[1])),
    }  # fmt: skip


def verification() -> dict[str, bool]:
    """By kind, whether a round is verified with the same bits by SGLang's columns of a program and by our hook's."""
    found = {}
    for name, ring in (("states", 0), ("ring", 16)):
        wanted, got = (few_rows_layer.Verify(4, ring=ring, heads=2, device="cpu") for _ in range(2))
        before = wanted.run(4)
        after = few_rows.verified(lambda one: one.run(verify.KDA_VERIFY_BLOCK_V), got)
        found[name] = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return found | {"columns": verify.KDA_VERIFY_BLOCK_V == plans.VERIFIED_COLUMNS != 4}


def context() -> dict[str, bool]:
    """By case, whether what a draft keeps of the target's rows has SGLang's bits; rows that are left out among them."""
    found = {}
    rows, layers, heads, width = 9, 2, 4, 32
    for halves, turned, counted in itertools.product((True, False), (None, 16), (True, False)):
        torch.manual_seed(0)
        kv, norms = torch.randn(rows, layers * 2 * heads * width).bfloat16(), torch.rand(layers, width).bfloat16()
        turns, places = torch.randn(64, turned or width), torch.randperm(20)[:rows]
        places[2] = -1
        confirmed = torch.tensor([3, 0, 2], dtype=torch.int32) if counted else None
        kept = []
        for write in (fused_kv_write.fused_kv_norm_rope_write, functools.partial(few_rows.kept, _never)):
            caches = torch.zeros(layers, 2, 20, heads * width).bfloat16()
            table = [[*(one.data_ptr() for one in layer), *(one.stride(0) for one in layer)] for layer in caches]
            write(
                kv, torch.tensor(table), norms, turns, torch.arange(rows) + 5, places, layers, heads * width, width,
                1e-6, commit_lens=confirmed, locs_row_width=3 if counted else None, is_neox_style=halves,
                rotary_dim=turned,
            )  # fmt: skip
            kept.append(caches)
        written = int((kept[0] != 0).any(-1).sum())  # one of the rows has no place
        wanted = 2 * layers * (4 if counted else 8)
        found[f"halves={halves} turned={turned} counted={counted}"] = torch.equal(*kept) and written == wanted
    return found


def _never(*_: Any, **__: Any) -> None:
    raise RuntimeError("our kernel was left out")


def replay() -> dict[str, Any]:
    """How a replay's kernel is launched with our hook, by how it was before."""
    launched = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **named: launched.append([list(grid), named["BV"], len(args)])

    with mock.patch.object(replays, "kda_replayssm_exact_fold_kernel", Kernel()):
        make = functools.partial(torch.zeros, 3, 4, 2)
        given = (make(64, 32), make(16, 64), make(16, 32), make(16, 32), make(16))
        for through in (False, True, True):  # once is enough
            call = replays.commit_kda_replayssm_spec_all_layers
            call = functools.partial(few_rows.replayed, call) if through else call
            call(*given, torch.tensor([2]), torch.tensor([5]), max_cache_len=16, num_k_heads=2)
    return {"launched": launched}


def benchmark() -> dict[str, Any]:
    """What the benchmark tells of a layer when it has time for one plan alone, of a matrix and of DSPARK's drafts."""
    found = bench.of(layer(), 2, time.monotonic())
    matrix = few_rows_layer.Product(256, 64, rounded=True, device="cpu")
    drafts = few_rows_layer.Markov(words=300, rank=16, steps=2, device="cpu")
    line = bench.line({"case": TINY, "rows": 2, **found})
    return {
        "parts": sorted(found["times"]), "tried": found["tried"], "line": line,
        "took": [
            *(us for pair in found["times"].values() for us in pair),
            *(matrix.time(1, plan) for plan in (None, matrix.plan)),
            *(drafts.time(ours=ours) for ours in (False, True)),
        ],
    }  # fmt: skip


def ensured(targets: dict[str, str] = hook_variables.TARGETS) -> None:
    with (
        mock.patch.dict(os.environ, {hook_variables.FEW_ROWS: ",".join(targets)}),
        mock.patch.dict(hook_variables.TARGETS, targets),
    ):
        few_rows.ensure()


def columns() -> int:
    """Of a program of SGLang's own verification, when it is called as it is now."""
    with mock.patch.object(verify, "KDA_VERIFY_BLOCK_V", 4):
        few_rows_layer.Verify(4, heads=2, device="cpu").run(None)
        return verify.KDA_VERIFY_BLOCK_V


def hooked(one: few_rows_layer.Layer, many: Sequence[int]) -> dict[int, dict[str, list[bool]]]:
    """By rows and part: whether SGLang's own function gives bitwise what our hook does, before and after."""
    found: dict[int, dict[str, list[bool]]] = {rows: {} for rows in many}

    def alike(rows: int, x: torch.Tensor, wanted: Any) -> None:
        logits, chosen, out = wanted
        got = {
            "scores": torch.equal(one.scores(x, ours=False), logits),
            "choice": torch.equal(one.choice(x, logits, ours=False).topk_weights, chosen.topk_weights),
            "experts": torch.equal(one.experts(x, chosen, ours=False), out),
        }
        for part, same in got.items():
            found[rows].setdefault(part, []).append(same)

    inputs = {rows: one.calls(rows)[0] for rows in many}
    wanted = {}
    for rows, x in inputs.items():
        few = rows <= plans.ROWS  # what our hook gives; for more rows SGLang's own, which it is to leave alone
        logits = one.scores(x, ours=few)
        chosen = one.choice(x, logits, ours=few)
        wanted[rows] = logits, chosen, one.experts(x, chosen, ours=few)
        alike(rows, x, wanted[rows])
    ensured()
    ensured()  # once is enough
    for rows, x in inputs.items():
        alike(rows, x, wanted[rows])
    return found


def main(argv: Sequence[str]) -> int:
    model, result = map(Path, argv)
    load_plugins()
    moe_kernel.boot(model, "--dtype", "float32", device="cpu")
    told: dict[str, Any] = {"choices": choices(), "left out": left_out(), "recurrence": recurrence()}
    told["verification"] = verification()
    told |= {"context": context(), **replay()}
    with (
        mock.patch.object(fused_moe, "moe_align_block_size", aligned),
        mock.patch.object(fused_moe, "outplace_fused_experts", plainly),
        mock.patch.object(fused_moe_triton_config, "get_device_name", lambda: GPU),
    ):
        for name, limit in (("free", None), ("limited", LIMIT)):
            one = layer(limit)
            told[name] = {rows: one.apart(rows) for rows in (1, 2, 6, 9, 16)}
        told["benchmark"] = benchmark()
        before = columns()
        told["hooked"] = hooked(layer(), (9, 17))
        told["verification"]["taken"] = [before, columns()]
        told["another release"] = missing(
            functools.partial(ensured, {**hook_variables.TARGETS, "choice": f"{few_rows.__name__}.gone.chosen"})
        )
    result.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
