"""What a user wants of an engine that runs SGLang, apart from the checkpoint itself: plain values, checked once.

Wrong combinations are refused here, with one sentence, by `ling-engine check`: before a pod holds a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ling_api.errors import BadInput
from ling_engine.decoding import DSPARK, NEXTN, NONE

if TYPE_CHECKING:
    from ling_engine.runtime import ModelSettings

REQUIRED, PREFERRED, OFF = "Required", "Preferred", "Off"
_POLICIES: Final = (REQUIRED, PREFERRED, OFF)
_TP: Final = (1, 2, 4, 8)
_DTYPES: Final = ("auto", "bfloat16", "float32")
_ROUTERS: Final = ("", "fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """`num_draft_tokens` counts the rows that the target verifies a round; 0 = as many as the draft was made for."""

    path: str
    served_name: str
    context_length: int  # tokens of one request, prompt and answer
    algorithm: str = NONE
    num_steps: int = 0
    num_draft_tokens: int = 0
    draft: str = ""  # folder of a DSPARK draft
    tp: int = 1
    concurrency: int = 4  # requests decoded at once
    dtype: str = "auto"
    router_dtype: str = ""  # "" = as the checkpoint says
    weight_cache: str = REQUIRED
    extra_args: tuple[str, ...] = ()


def of(settings: ModelSettings) -> Wishes:
    """From the engine's settings. Raises BadInput."""
    decoding = settings.decoding
    draft = decoding.draft or (str(settings.path / "dspark") if decoding.algorithm == DSPARK else "")
    wishes = Wishes(
        path=str(settings.path),
        served_name=settings.served_name,
        context_length=settings.context_length,
        algorithm=decoding.algorithm,
        num_steps=decoding.num_steps,
        num_draft_tokens=decoding.num_draft_tokens,
        draft=draft,
        tp=settings.tp,
        concurrency=settings.concurrency,
        dtype=settings.dtype,
        router_dtype=settings.router_dtype,
        weight_cache=settings.weight_cache,
        extra_args=settings.extra_args,
    )
    check(wishes)
    return wishes


def check(wishes: Wishes) -> None:
    """Raises BadInput with the first sentence that applies."""
    for flag, value, known in (
        ("--tp", wishes.tp, _TP),
        ("--dtype", wishes.dtype, _DTYPES),
        ("--router-dtype", wishes.router_dtype, _ROUTERS),
        ("--weight-cache", wishes.weight_cache, _POLICIES),
        ("--decoding", wishes.algorithm, (NONE, NEXTN, DSPARK)),
    ):
        if value not in known:
            raise BadInput(f"{flag} {value!r}: write one of {', '.join(str(one) for one in known if one != '')}")
    if not 1 <= wishes.concurrency <= 64:
        raise BadInput(f"--concurrency {wishes.concurrency}: write a number from 1 to 64")
    if wishes.context_length < 16:
        raise BadInput(f"--context-length {wishes.context_length}: SGLang's warm-up alone needs 16 tokens")
    if wishes.algorithm == DSPARK and not wishes.draft:
        raise BadInput("--decoding DSPARK: name the draft's folder with --draft")
