"""Which results are refused, and why. Pure. A refused result is kept and shown, and never compared.

Refused is what can not be true, or is not what the protocol asks for: an accept length above what a round can give, an
answer of another length, a prompt that a cache answered, tokens of other clients in the counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .protocol import Protocol
    from .result import Side

_SLACK: Final = 1e-9
ACCEPTANCES: Final = ("real", "simulated", "predictable")


def reasons(protocol: Protocol, side: Side) -> list[str]:
    """A sentence each; empty: nothing speaks against it."""
    return [f"{side.url}: {why}" for why in (*_rounds(side), *_lengths(protocol, side), *_counters(side))]


def _rounds(side: Side) -> Iterator[str]:
    found = side.accept_length
    if found is None:
        return
    if side.drafts is not None and found > side.drafts + 1 + _SLACK:
        yield (
            f"accept length {found:.3f} is above {side.drafts} draft tokens + 1, which no verify round can give; are "
            "its counters whole, and is --drafts right?"
        )
    if found < 1 - _SLACK:
        yield f"accept length {found:.3f} is below 1: every verify round gives at least one token"


def _lengths(protocol: Protocol, side: Side) -> Iterator[str]:
    if not protocol.ignore_eos:
        return
    wrong = [one for one in side.samples if one.tokens != protocol.output_tokens]
    if wrong:
        yield (
            f"{len(wrong)} of {len(side.samples)} answers do not have {protocol.output_tokens} tokens (request "
            f"{wrong[0].index} has {wrong[0].tokens}); does the endpoint know ignore_eos?"
        )
    wrong = [one for one in side.samples if one.prompt_tokens not in (None, protocol.input_tokens)]
    if wrong:
        yield f"a prompt of {protocol.input_tokens} token ids was counted as {wrong[0].prompt_tokens} tokens"
    cached = sum(one.cached_tokens or 0 for one in side.samples)
    if cached:
        yield f"{cached} tokens of prompts came from a prefix cache; give another --salt or none"


def _counters(side: Side) -> Iterator[str]:
    strange = [one for one in side.samples if one.counted_tokens not in (None, one.tokens)]
    if strange:
        one = strange[0]
        yield (
            f"its counters say {one.counted_tokens:g} tokens while request {one.index} was answered with {one.tokens}: "
            "others are being answered, or another process counts than the one that answers"
        )
