"""The endpoint's own counters, from its `/metrics`: tokens, verify rounds, and what those rounds gave. Pure.

Accept length is a difference of counters by another: tokens that verify rounds gave, by rounds. It includes the token
that the target adds to the accepted drafts, and leaves out each answer's first token, which comes from the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How an engine names them. `given` None: tokens less one a request; `bonus`: a round's own token is not in it."""

    engine: str
    mark: str  # a line that begins so tells that this engine's metrics are here
    tokens: str
    rounds: str
    given: str | None = None
    bonus: bool = False


FAMILIES: Final = (
    Family(
        engine="Ling", mark="ling_output_tokens", tokens="ling_output_tokens_total", rounds="ling_verify_rounds_total",
        given="ling_accepted_tokens_total",
    ),
    Family(
        engine="SGLang", mark="sglang:", tokens="sglang:generation_tokens_total",
        rounds="sglang:spec_verify_calls_total",
    ),
    Family(
        engine="vLLM", mark="vllm:", tokens="vllm:generation_tokens_total", rounds="vllm:spec_decode_num_drafts_total",
        given="vllm:spec_decode_num_accepted_tokens_total", bonus=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Since the server began, or, as a difference, of some requests."""

    tokens: float
    rounds: float
    given: float | None  # by verify rounds; None: the family does not count them


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Of one request: `given` tokens in `rounds` verify rounds; `tokens` as the counters have them."""

    tokens: float
    rounds: float
    given: float


def family_of(text: str) -> Family | None:
    """Whose metrics these are; Ling's own count, where SGLang's stand beside them."""
    lines = text.splitlines()
    return next((one for one in FAMILIES if any(line.startswith(one.mark) for line in lines)), None)


def read(text: str, family: Family) -> Counts:
    """Sums over labels; a counter that nothing has touched yet is 0."""
    return Counts(
        tokens=_sum(text, family.tokens),
        rounds=_sum(text, family.rounds),
        given=None if family.given is None else _sum(text, family.given),
    )


def between(before: Counts, after: Counts, family: Family, requests: int = 1) -> Rounds | None:
    """What came meanwhile; None if a counter went back: another process answers, or the server was restarted."""
    tokens, rounds = after.tokens - before.tokens, after.rounds - before.rounds
    if before.given is None or after.given is None:
        given = tokens - requests if rounds else 0.0
    else:
        given = after.given - before.given + (rounds if family.bonus else 0.0)
    if min(tokens, rounds, given) < 0:
        return None
    return Rounds(tokens=tokens, rounds=rounds, given=given)


def _sum(text: str, name: str) -> float:
    found = 0.0
    for line in text.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in (" ", "{"):
            found += float(line[len(name) :].rpartition("}")[2].split()[0])
    return found
