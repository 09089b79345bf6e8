"""From wishes to SGLang's command line and environment: the recipe, and every size that SGLang would else guess."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput
from ling_engine.decoding import DSPARK, NEXTN, NONE

from . import extras, hook_variables, memory, moe, recipes
from .families import Family
from .sizes import set_bytes
from .wishes import OFF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_api.memoryplan import MemoryPlan

    from .shape import Shape
    from .wishes import Wishes

LOAD_FORMAT: Final = "private"  # SGLang's own name for a loader that is installed beside it
NO_TABLES: Final = moe.Tables()
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_PREFILL: Final = 8192  # tokens of a prompt computed at once
_GRANULARITY: Final = 2 << 20  # bytes, of the driver's allocations
_ALIKE: Final = "--enable-deterministic-inference"  # results do not depend on what else is computed
_SEED: Final = "42"  # SGLang draws one where none is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """`env` is for the process that imports SGLang, before it does. Plan and weights are one rank's."""

    argv: tuple[str, ...]
    env: dict[str, str]
    plan: MemoryPlan
    weights: dict[str, int]  # bytes by role
    draft_tokens: int = 0  # rows that the target verifies a round; 0 without speculation


def command_line(
    wishes: Wishes,
    shape: Shape,
    family: Family,
    tables: moe.Tables = NO_TABLES,
    environ: Mapping[str, str] = NOTHING,
) -> Arguments:
    """What to call SGLang with; `environ` goes before the recipe's variables. Raises BadInput for wishes that this
    checkpoint or this GPU cannot meet."""
    _check(wishes, shape, family)
    recipe = _recipe(wishes, shape, family)
    load = load_of(wishes, shape, family, environ)
    plan = memory.plan(shape, load)
    weights = set_bytes(shape, roles(wishes.algorithm), wishes.tp, _GRANULARITY)
    argv = [
        *("--model-path", wishes.path),
        *("--served-model-name", wishes.served_name),
        *("--context-length", str(wishes.context_length)),
        *("--tp-size", str(wishes.tp)),
        *("--dtype", "float32" if family is Family.CPU else wishes.dtype),
        *("--random-seed", _SEED),
        *_sizes(load, plan, sum(weights.values()), family),
        *recipe.argv,
        *_decoding(wishes, shape, recipe),
    ]
    if wishes.weight_cache != OFF:
        argv += ["--load-format", LOAD_FORMAT]
    if wishes.router_dtype and wishes.router_dtype != shape.router_dtype:
        argv += ["--json-model-override-args", json.dumps({"router_dtype": wishes.router_dtype})]
    argv += extras.checked(wishes.extra_args)
    tuned = {} if family is Family.CPU else moe.variables(tables, moe.layers(shape, wishes.tp))
    env = recipe.env | tuned
    return Arguments(argv=tuple(argv), env=env, plan=plan, weights=weights, draft_tokens=load.draft_tokens)


def _recipe(wishes: Wishes, shape: Shape, family: Family) -> recipes.Recipe:
    alike = _ALIKE in wishes.extra_args
    return recipes.recipe(family, wishes.algorithm, shape.quantization, wishes.tp, alike=alike)


def roles(algorithm: str) -> tuple[str, ...]:
    """The weight sets of an engine that decodes so, in the order in which SGLang loads them."""
    return {NONE: ("target",), NEXTN: ("target", "nextn"), DSPARK: ("target", "dspark")}[algorithm]


def load_of(wishes: Wishes, shape: Shape, family: Family, environ: Mapping[str, str] = NOTHING) -> memory.Load:
    """What the caches are made for."""
    tokens = draft_tokens(wishes, shape)
    recipe = _recipe(wishes, shape, family)
    argv = [*recipe.argv, *extras.checked(wishes.extra_args)]
    pages = [argv[at + 1] for at, word in enumerate(argv) if word == "--page-size"]
    if not all(page.isdigit() and int(page) for page in pages):
        raise BadInput(f"--extra-arg --page-size={pages[-1]}: write a whole number of tokens")
    return memory.Load(
        algorithm=wishes.algorithm,
        tp=wishes.tp,
        concurrency=wishes.concurrency,
        context_length=wishes.context_length,
        draft_tokens=tokens,
        page=int(pages[-1]) if pages else 1,
        ring=recipes.replay_ring(tokens) if tokens and "--enable-linear-replayssm-spec" in argv else 0,
        prefill_rows=min(_PREFILL, wishes.context_length),
        draft_fp8=hook_variables.draft_fp8({**recipe.env, **environ}, wishes.algorithm, wishes.tp),
    )


def draft_tokens(wishes: Wishes, shape: Shape) -> int:
    """Rows that the target verifies a round: the drafts and the token before them; 0 without speculation."""
    if wishes.algorithm == NONE:
        return 0
    if wishes.num_draft_tokens:
        return wishes.num_draft_tokens
    return wishes.num_steps + 1 if shape.draft is None else shape.draft.block + 1


def _sizes(load: memory.Load, plan: MemoryPlan, weights: int, family: Family) -> list[str]:
    argv = [
        *("--max-running-requests", str(load.concurrency)),
        *("--max-mamba-cache-size", str(load.concurrency)),  # one KDA state a request: no prefix cache keeps more
        *("--max-total-tokens", str(memory.total_tokens(load))),
        *("--chunked-prefill-size", str(load.prefill_rows)),
        *("--max-prefill-tokens", str(load.prefill_rows)),
    ]
    if family is Family.CPU:
        return argv
    sizes = [str(size) for size in memory.graph_sizes(load.concurrency)]
    fraction = f"{memory.fraction(weights, plan):.3f}"
    return [
        *argv,
        *("--mem-fraction-static", fraction),
        *("--cuda-graph-max-bs-decode", sizes[-1]),
        *("--cuda-graph-bs-decode", *sizes),
    ]


def _decoding(wishes: Wishes, shape: Shape, recipe: recipes.Recipe) -> list[str]:
    tokens = str(draft_tokens(wishes, shape))
    if wishes.algorithm == NEXTN:
        argv = ["--speculative-algorithm", NEXTN, "--speculative-num-steps", str(wishes.num_steps)]
        argv += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", tokens]
    elif wishes.algorithm == DSPARK:
        argv = ["--speculative-algorithm", DSPARK, "--speculative-draft-model-path", wishes.draft]
        argv += ["--speculative-dspark-block-size", str(int(tokens) - 1)]
    else:
        return []
    if "--enable-linear-replayssm-spec" in (*recipe.argv, *wishes.extra_args):
        argv += ["--linear-replayssm-cache-len", str(recipes.replay_ring(int(tokens)))]
    return argv


def _check(wishes: Wishes, shape: Shape, family: Family) -> None:
    """Raises BadInput with the first sentence that applies."""
    algorithm, fp8 = wishes.algorithm, shape.quantization == "fp8"
    most = shape.draft.block + 1 if shape.draft else 0
    refusals = (
        (
            wishes.context_length > shape.max_positions,
            f"context length {wishes.context_length}: the checkpoint was made for {shape.max_positions} tokens at most",
        ),
        (shape.heads % wishes.tp, f"--tp {wishes.tp}: the model has {shape.heads} heads, which cannot be split evenly"),
        (
            algorithm == NEXTN and not shape.nextn_layers,
            "--decoding NEXTN: the checkpoint has no NEXTN layer (num_nextn_predict_layers is 0); write None or DSPARK",
        ),
        (
            algorithm == DSPARK and shape.draft is None,
            f"--decoding DSPARK: there is no draft in {wishes.draft or 'the checkpoint'}",
        ),
        (
            algorithm == DSPARK and family is Family.CPU,
            "--decoding DSPARK: SGLang has it for GPUs only; the Reference runtime serves it on a CPU",
        ),
        (fp8 and family is Family.CPU, "an fp8 checkpoint needs a GPU; the CPU serves bf16 and fp32"),
        (
            fp8 and shape.experts % wishes.tp,
            f"--tp {wishes.tp}: {shape.experts} fp8 experts cannot be shared out evenly",
        ),
        (family is Family.CPU and wishes.tp > 1, f"--tp {wishes.tp}: on a CPU SGLang runs with 1 rank only"),
        (
            algorithm == DSPARK and shape.draft is not None and draft_tokens(wishes, shape) > most,
            f"--num-draft-tokens {wishes.num_draft_tokens}: the draft was made for {most} at most",
        ),
    )
    for applies, sentence in refusals:
        if applies:
            raise BadInput(sentence)
