"""What only drafts read, in fp8: hooks that give the draft rounded copies, half as many bytes to read in every round.

The target's weights stay as they are, so tokens do; drafts are guessed with the copies. These are this rank's own
memory: a byte for each number. A round of NEXTN reads the head once for each draft, of all that it reads the most; one
of DSPARK reads the head and its own layers once, and its Markov head once for each draft (`kernels/markov.py`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from ling_engine.decoding import NEXTN
from ling_engine.kernels import plans

from . import few_rows, hook_variables, hooking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ling_engine.kernels.markov import Head

_log = logging.getLogger(__name__)
_EAGLE: Final = "sglang.srt.speculative.eagle_worker_v2"
_HOME: Final = "sglang.srt.speculative.dspark_components"
_DSPARK: Final = f"{_HOME}.dspark_worker_v2"
# Before the draft's graphs are captured.
NEXTN_READY: Final = f"{_EAGLE}.EagleDraftWorker.init_attention_backends"
DSPARK_READY: Final = f"{_DSPARK}.DSparkWorkerV2.init_attention_backends"
BLOCK: Final = f"{_HOME}.dspark_draft_sampler.draft_markov_block"
CONTEXT: Final = "sglang.srt.models.dspark.DSparkDraftMixin._build_fused_kv_write_bundle"
_MARK: Final = "_ling_draft_fp8"  # of a draft that has been asked already
_COPY: Final = "_ling_fp8"  # of a Markov head, ours in its place


def ensure(*_: object, **__: object) -> None:
    """In ranks that decode with drafts, where it is wanted. Raises BadInput, and PluginMissing where SGLang is another
    one."""
    parts = hook_variables.draft_fp8(os.environ)
    if parts and _EAGLE in sys.modules:
        hooking.place(hooking.AFTER, NEXTN_READY, for_nextn)
    if parts and _DSPARK in sys.modules:
        hooking.place(hooking.AFTER, DSPARK_READY, for_dspark)
        hooking.place(hooking.AROUND, BLOCK, drafted)
        hooking.place(hooking.AROUND, CONTEXT, written)


def for_nextn(_: object, worker: Any, *args: object, **kwargs: object) -> None:
    """Runs after NEXTN_READY. A head that is not what the kernel is for stays as it is."""
    hook_variables.draft_fp8(os.environ, NEXTN)
    head = worker.draft_runner.model.lm_head
    if isinstance(head.quant_method, Rounded):
        return
    made = _rounded(head.weight.data) if worker.hot_token_id is None else None
    if made is not None:
        head.quant_method = made
        torch.cuda.empty_cache()  # graphs are captured next, and their memory is planned
    _told(["head"], ["head"] if made else [])


def _told(wanted: Sequence[str], given: Sequence[str]) -> None:
    level = logging.INFO if list(wanted) == list(given) else logging.WARNING
    _log.log(level, "draft_fp8=%s wanted=%s", ",".join(given), ",".join(wanted))


def for_dspark(_: object, worker: Any, *args: object, **kwargs: object) -> None:
    """Runs after DSPARK_READY: on one rank, each wanted part that is what the kernels are for."""
    model, wanted = worker.draft_model, hook_variables.draft_fp8(os.environ)
    if getattr(model, _MARK, False):
        return
    setattr(model, _MARK, True)
    makers = {"head": _give_head, "markov": _give_markov, "layers": _give_layers}
    alone = getattr(model.lm_head, "tp_size", 1) == 1
    given = [part for part in wanted if alone and makers[part](model)]
    torch.cuda.empty_cache()
    _told(wanted, given)


def _give_head(model: Any) -> bool:
    """The target's head is one object for both, so that the draft gets one of its own around it."""
    made = _rounded(model.lm_head.weight.data)
    if made is not None:
        model.lm_head = DraftHead(model.lm_head, made)
    return made is not None


class DraftHead(torch.nn.Module):
    """All of the head that it stands for, but for how it multiplies."""

    def __init__(self, shared: Any, method: Rounded) -> None:
        super().__init__()
        self.shared, self.quant_method = shared, method

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("shared"), name)


def _give_layers(model: Any) -> bool:
    """All or none; SGLang's own methods keep their class, by which it knows that it may cut the matrices."""
    if getattr(model, "fc", None) is None:
        return False
    found = list(_products(model))
    made = [_rounded(one.weight.data) for one in found]
    if not all(made) or any(getattr(one, "bias", None) is not None for one in found):
        return False
    for one, method in zip(found, made, strict=True):
        if isinstance(one, torch.nn.Linear):
            one.forward = functools.partial(method.apply, one)  # type: ignore[union-attr, method-assign]
        else:
            one.quant_method.apply = method.apply  # type: ignore[union-attr]
    return True


def _products(model: Any) -> Iterator[Any]:
    """The matrices of all layers, and that by which the draft reads the target's rows."""
    yield model.fc
    for layer in model.layers:
        yield from (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)


def _give_markov(model: Any) -> bool:
    head = model.markov_head
    if type(head).__name__ != "VanillaMarkov":
        return False
    rows, matrix = head.markov_w1.weight.data, head.markov_w2.weight.data
    plan = plans.markov(*matrix.shape)
    if plan is None or not all(one.dtype == torch.bfloat16 and one.is_contiguous() for one in (rows, matrix)):
        return False
    from ling_engine.kernels import fp8, markov

    setattr(head, _COPY, markov.Head(rows, *fp8.rounded(matrix), plan))
    return True


def drafted(original: Callable[..., Any], **named: Any) -> Any:
    """In the place of draft_markov_block, for one request whose scores are kept: those of sampling too."""
    base, kept, noise = named["base_logits"], named.get("logits_out"), named["noise"]
    head: Head | None = getattr(named["markov_head"], _COPY, None)
    if head is None or kept is None or named.get("greedy_draft") or kept.shape != base.shape:
        return original(**named)
    if not (_of_one(base) and _of_one(kept)):
        return original(**named)
    first = named["anchor_tokens"].long()
    tokens = head.drafted(
        base[0], first, kept[0], named["step_temperatures"], noise.offset, seed=noise.key, pdl=few_rows.pdl()
    )
    noise.offset.add_(1)
    return tokens[None], kept


def _of_one(scores: Any) -> bool:
    """Whether [requests, steps, words] are one request's, as our kernel takes them."""
    return len(scores) == 1 and bool(scores.is_contiguous()) and bool(scores.dtype == torch.bfloat16)


def written(original: Callable[..., Any], model: Any, *args: Any) -> Any:
    """In the place of _build_fused_kv_write_bundle: what the target's rows become in the draft's cache, of all layers
    at once."""
    bundle = original(model, *args)
    attentions = [layer.self_attn for layer in model.layers]
    if bundle is None or not all(_is_rounded(one.qkv_proj) for one in attentions):
        return bundle
    keys = (one.qkv_proj.weight.data[one.q_size : one.q_size + 2 * one.kv_size] for one in attentions)
    method = _rounded(torch.cat(list(keys)))
    if method is None:
        return bundle
    structs: Any = importlib.import_module("msgspec.structs")
    many = bundle.project
    return structs.replace(bundle, project=lambda x: method.product(x) if few_rows.few(x) else many(x))


def _is_rounded(linear: Any) -> bool:
    return isinstance(getattr(linear.quant_method.apply, "__self__", None), Rounded)


def _rounded(weight: torch.Tensor) -> Rounded | None:
    """None for a matrix that the kernel is not for."""
    plan = plans.rounded(weight.shape[1], weight.shape[0])
    known = weight.dtype == torch.bfloat16 and weight.is_contiguous()
    return None if plan is None or not known else Rounded(weight, plan)


class Rounded:
    """What SGLang asks for products instead of multiplying with a matrix itself; more rows than a step's it multiplies
    as SGLang would."""

    def __init__(self, weight: torch.Tensor, plan: plans.Plan) -> None:
        from ling_engine.kernels import fp8, products

        self._plan = plan
        self._matrix = products.Matrix(*fp8.rounded(weight))

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, columns] of few rows."""
        return self._matrix.product(x, plan=self._plan, pdl=few_rows.pdl())

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, columns]."""
        if bias is None and x.ndim == 2 and few_rows.few(x):
            return self.product(x)
        found = torch.matmul(x.to(layer.weight.dtype), layer.weight.T)
        return found if bias is None else found + bias
