"""Drafts with matrices in fp8, as SGLang's own functions ask for them, interpreted. `RESULT`: a file for JSON.

Workers and layers are stand-ins with what our hooks read; heads, methods, Markov heads and the drafting of a block are
SGLang's.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from sglang.srt.models import dspark
from sglang.srt.speculative import dflash_utils, eagle_worker_v2
from sglang.srt.speculative.dspark_components import dspark_draft_sampler, dspark_worker_v2
from tests.support.sglang_guards import missing

from ling_api.errors import BadInput
from ling_engine.kernels import fp8
from ling_engine.sglang import accepting, draft_fp8, hook_variables, hooking

WORDS, HIDDEN, RANK, STEPS, HEADS = 512, 128, 32, 4, 64
NEXTN_HEAD = {hook_variables.DRAFT_FP8: "head"}
ALL = {hook_variables.DRAFT_FP8: "head,markov,layers"}


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size).bfloat16()


def apart(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


# NEXTN


def nextn(weight: torch.Tensor, **changed: Any) -> Any:
    head = SimpleNamespace(weight=torch.nn.Parameter(weight), quant_method=UnquantizedEmbeddingMethod())
    runner = SimpleNamespace(model=SimpleNamespace(lm_head=head))
    return SimpleNamespace(**({"draft_runner": runner, "hot_token_id": None} | changed))


def asked(worker: Any, x: torch.Tensor) -> torch.Tensor:
    """What SGLang makes of rows and the draft's head."""
    processor = SimpleNamespace(use_fp32_lm_head=False, use_fp32_lm_head_output=False, rl_on_policy_target=None)
    found: torch.Tensor = LogitsProcessor._compute_lm_head(processor, x, worker.draft_runner.model.lm_head)
    return found


def scores() -> dict[str, Any]:
    torch.manual_seed(0)
    weight = random(WORDS, HIDDEN)
    kept, plain, worker = weight.clone(), nextn(weight.clone()), nextn(weight)
    few, many = random(6, HIDDEN), random(17, HIDDEN)
    before = asked(worker, few)
    draft_fp8.for_nextn(None, worker)
    first = worker.draft_runner.model.lm_head.quant_method
    draft_fp8.for_nextn(None, worker)
    found = asked(worker, few)
    return {
        "apart": apart(found, few.double() @ weight.double().T), "type": str(found.dtype),
        "another": not torch.equal(found, before),
        "many": torch.equal(asked(worker, many), asked(plain, many)),
        "kept": torch.equal(weight, kept), "once": worker.draft_runner.model.lm_head.quant_method is first,
        "bytes": [first._matrix.weight.numel() * first._matrix.weight.element_size(), WORDS * HIDDEN],
    }  # fmt: skip


def shared() -> dict[str, bool]:
    """By reason, whether the draft's head was left as it is."""
    cases = {
        "another type": nextn(torch.randn(WORDS, HIDDEN)),
        "no whole programs": nextn(random(WORDS + 8, HIDDEN)),
        "fewer words": nextn(random(WORDS, HIDDEN), hot_token_id=torch.tensor([1])),
    }
    for worker in cases.values():
        draft_fp8.for_nextn(None, worker)
    heads = {name: worker.draft_runner.model.lm_head for name, worker in cases.items()}
    return {name: isinstance(head.quant_method, UnquantizedEmbeddingMethod) for name, head in heads.items()}


# DSPARK


def linear(columns: int, summands: int) -> Any:
    return SimpleNamespace(weight=torch.nn.Parameter(random(columns, summands)), bias=None,
                           quant_method=UnquantizedLinearMethod())  # fmt: skip


def model() -> Any:
    attention = SimpleNamespace(qkv_proj=linear(3 * HEADS, HIDDEN), o_proj=linear(HIDDEN, HEADS), q_size=HEADS,
                                kv_size=HEADS)  # fmt: skip
    layer = SimpleNamespace(
        self_attn=attention, mlp=SimpleNamespace(gate_up_proj=linear(256, HIDDEN), down_proj=linear(HIDDEN, 128))
    )
    head = torch.nn.Module()
    head.weight = torch.nn.Parameter(random(WORDS, HIDDEN))
    head.org_vocab_size, head.tp_size, head.quant_method = WORDS, 1, UnquantizedEmbeddingMethod()
    markov = dspark.VanillaMarkov(vocab_size=WORDS, markov_rank=RANK).bfloat16()
    with torch.no_grad():
        markov.markov_w1.weight.copy_(random(WORDS, RANK))
        markov.markov_w2.weight.copy_(random(WORDS, RANK))
    found = torch.nn.Module()
    found.lm_head, found.markov_head, found.layers = head, markov, [layer]
    found.fc = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False).bfloat16()
    return found


def given(environ: dict[str, str]) -> Any:
    torch.manual_seed(1)
    made = model()
    with mock.patch.dict(os.environ, environ):
        draft_fp8.for_dspark(None, SimpleNamespace(draft_model=made))
        draft_fp8.for_dspark(None, SimpleNamespace(draft_model=made))  # once is enough
    return made


def block(made: Any, requests: int = 1, temperature: float = 0.0, *, greedy: bool = False, round_: int = 0) -> Any:
    """Tokens of the drafting of a block, the scores kept, how often the noise was advanced."""
    torch.manual_seed(2)
    base, first = random(requests, STEPS, WORDS), torch.arange(requests) + 3
    kept = None if greedy else torch.zeros(requests, STEPS, WORDS).bfloat16()
    noise = SimpleNamespace(key=5, offset=torch.full((1,), round_))
    tokens, scores = dspark_draft_sampler.draft_markov_block(
        markov_head=made.markov_head, base_logits=base, anchor_tokens=first, draft_hidden=None,
        step_temperatures=torch.full((requests,), temperature), noise=noise,
        tp_sync=SimpleNamespace(sync=lambda _, values: values), logits_out=kept, greedy_draft=greedy,
    )  # fmt: skip
    return tokens.tolist(), scores, int(noise.offset) - round_


def as_rounded(made: Any) -> Any:
    """The same Markov head with the values that its copy has."""
    weight = made.markov_head.markov_w2.weight
    small, scales = fp8.rounded(weight.data)
    with torch.no_grad():
        weight.copy_(small.float() * scales[:, None])
    return made


def blocks() -> dict[str, Any]:
    ours, plain = given(ALL), as_rounded(given({}))
    wanted, found = block(plain), block(ours)
    drawn = [block(ours, temperature=t) for t in (1.0, 1.0, 0.01)]
    other = block(ours, temperature=1.0, round_=1)[0]
    return {
        "tokens": [wanted[0], found[0]], "advanced": [wanted[2], found[2], block(ours, greedy=True)[2]],
        "scores": apart(found[1], wanted[1]), "repeatable": drawn[0][0] == drawn[1][0],
        "drawn": [drawn[0][0] != found[0], drawn[2][0] == found[0]], "another round": other != drawn[0][0],
        "several": apart(block(ours, 2)[1], block(given({}), 2)[1]),
    }  # fmt: skip


def layers() -> dict[str, Any]:
    made, plain = given(ALL), given({})
    few, many, wide = random(8, HIDDEN), random(17, HIDDEN), random(8, 2 * HIDDEN)
    (mine, its), *pairs = list(zip(draft_fp8._products(made), draft_fp8._products(plain), strict=True))
    found = [a.quant_method.apply(a, wide[:, : a.weight.shape[1]].contiguous()) for a, _ in pairs] + [mine(wide)]
    exact = [wide[:, : b.weight.shape[1]] @ b.weight.T for _, b in pairs] + [its(wide)]
    qkv, attention = made.layers[0].self_attn.qkv_proj, made.layers[0].self_attn
    bundle = dspark.FusedKvWriteBundle(
        project=lambda x: x @ qkv.weight[HEADS:].T, meta=few, k_norm_weights=few, cos_sin=few, eps=1.0, num_layers=1,
        kv_size=HEADS, head_dim=HEADS, rotary_dim=HEADS, is_neox_style=True,
    )  # fmt: skip
    written = draft_fp8.written(lambda *_: bundle, made, object())
    return {
        "apart": max(apart(a, b) for a, b in zip(found, exact, strict=True)),
        "another": not any(torch.equal(a, b) for a, b in zip(found, exact, strict=True)),
        "many": torch.equal(qkv.quant_method.apply(qkv, many), many @ qkv.weight.T),
        "may be cut": dflash_utils.can_dflash_slice_qkv_weight(attention.qkv_proj)[0],
        "context": apart(written.project(few), bundle.project(few)),
        "context, many": torch.equal(written.project(many), bundle.project(many)),
        "context, unasked": draft_fp8.written(lambda *_: bundle, plain, object()) is bundle,
        "no bundle": draft_fp8.written(lambda *_: None, made, object()),
    }


def outlier() -> list[bool]:
    """Whether a row with a number that fp16 does not hold has results, and the rows beside it theirs."""
    torch.manual_seed(3)
    method = draft_fp8._rounded(random(WORDS, HIDDEN))
    assert method is not None
    x = random(4, HIDDEN)
    usual = method.product(x.clone())
    x[1, 5] = 300_000.0
    found = method.product(x)
    return [bool(found.isfinite().all()), torch.equal(found[[0, 2, 3]], usual[[0, 2, 3]])]


def refusals() -> dict[str, list[bool]]:
    """By reason, which of head, Markov head and layers the draft has got all the same."""
    found = {}
    for why in ("two ranks", "a bias", "an odd matrix", "another Markov head", "fp32"):
        torch.manual_seed(1)
        made = model()
        layer = made.layers[0]
        if why == "two ranks":
            made.lm_head.tp_size = 2
        elif why == "a bias":
            layer.mlp.gate_up_proj.bias = random(256)
        elif why == "an odd matrix":
            layer.self_attn.qkv_proj.weight = torch.nn.Parameter(random(3 * HEADS + 8, HIDDEN))
        elif why == "another Markov head":
            made.markov_head = dspark.GatedMarkovHead(vocab_size=WORDS, markov_rank=RANK, hidden_size=HIDDEN)
        else:
            made.markov_head.float()
        with mock.patch.dict(os.environ, ALL):
            draft_fp8.for_dspark(None, SimpleNamespace(draft_model=made))
        found[why] = [
            isinstance(made.lm_head, draft_fp8.DraftHead),
            hasattr(made.markov_head, draft_fp8._COPY),
            draft_fp8._is_rounded(layer.self_attn.qkv_proj),
        ]
    return found


def heads() -> dict[str, Any]:
    made, plain = given(ALL), given({})
    few = random(8, HIDDEN)
    found = dspark.project_through_lm_head(few, made.lm_head)
    own = made.lm_head.shared
    return {
        "apart": apart(found, dspark.project_through_lm_head(few, plain.lm_head)),
        "once": not isinstance(made.lm_head.shared, draft_fp8.DraftHead),
        "the target's": isinstance(own.quant_method, UnquantizedEmbeddingMethod) and own is not made.lm_head,
        "words": int(made.lm_head.org_vocab_size), "unasked": isinstance(plain.lm_head, draft_fp8.DraftHead),
    }  # fmt: skip


def placed() -> dict[str, Any]:
    places = lambda: [  # noqa: E731
        eagle_worker_v2.EagleDraftWorker.init_attention_backends,
        dspark_worker_v2.DSparkWorkerV2.init_attention_backends,
        dspark_draft_sampler.draft_markov_block,
        dspark.DSparkDraftMixin._build_fused_kv_write_bundle,
    ]
    kept = places()
    draft_fp8.ensure()
    unasked = places() == kept
    refused = {}
    for name, ask in {"fp4": draft_fp8.ensure, "markov": lambda: draft_fp8.for_nextn(None, None)}.items():
        with mock.patch.dict(os.environ, {hook_variables.DRAFT_FP8: name}):
            try:
                ask()
            except BadInput as error:
                refused[name] = str(error)
    with mock.patch.dict(os.environ, ALL):
        with mock.patch.object(draft_fp8, "BLOCK", f"{draft_fp8.BLOCK}_gone"):
            another = missing(draft_fp8.ensure)
        draft_fp8.ensure()
    hooked = [now is not before for now, before in zip(places(), kept, strict=True)]
    return {"unasked": unasked, "refused": refused, "another release": another, "hooked": hooked, **beside_another()}


def beside_another() -> dict[str, Any]:
    """With acceptance in the graph, which waits for the same method of SGLang's; of the two, who was asked."""
    asked = []
    worker = SimpleNamespace(_hosts_draft=False, draft_model=given({}))
    setattr(worker.draft_model, draft_fp8._MARK, False)
    with (
        mock.patch.dict(os.environ, ALL | {hook_variables.ACCEPT_IN_GRAPH: "1"}),
        mock.patch.object(accepting, "unsuited", lambda *_: asked.append("acceptance") or "a test"),
    ):
        accepting.ensure()
        draft_fp8.ensure()
        dspark_worker_v2.DSparkWorkerV2.init_attention_backends(worker)
    asked += ["fp8"] if isinstance(worker.draft_model.lm_head, draft_fp8.DraftHead) else []
    try:
        hooking.place(hooking.BEFORE, accepting.READY, accepting.fold)
    except ValueError as error:
        return {"both": asked, "two kinds": str(error)}
    return {"both": asked, "two kinds": "let through"}


def main(argv: Sequence[str]) -> int:
    with mock.patch.dict(os.environ, NEXTN_HEAD):
        told = {"scores": scores(), "shared": shared()}
    told |= placed()
    told |= {"blocks": blocks(), "layers": layers(), "heads": heads(), "refusals": refusals()}
    told["outlier"] = outlier()
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
