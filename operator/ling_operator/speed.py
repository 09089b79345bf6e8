"""What the engines' own figures say: whether the wanted speed is met, and whether the drafts behave suspiciously. Pure.

A decoder whose every draft is accepted, or none, over a window of requests is a known sign of wrong weights (of the
model, so that it repeats itself, or of the draft). The window is the engine's: its most recent requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ling_api import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ling_api.checkpoint import Decoding
    from ling_api.v1alpha1 import Slo
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.verdicts import Verdict

WINDOW: Final = 32  # requests at least, before the drafts are judged
NEAR: Final = 0.005  # this close to an end is at it: figures are rounded
NEXTN_STEPS: Final = 5  # drafts of a round where nothing is stated


def ceiling(decoding: Decoding, verified: int = 0) -> float | None:
    """The longest accept length that is possible; None where it is not known or nothing is drafted.

    `verified`: rows that the target verifies a round, by the engine's own word, who has read the draft; 0: not told.
    """
    if decoding.algorithm == "None":
        return None
    if verified:
        return float(verified)
    if decoding.num_draft_tokens:
        return float(decoding.num_draft_tokens)
    return float((decoding.num_steps or NEXTN_STEPS) + 1) if decoding.algorithm == "NEXTN" else None


def suspicion(
    decoding: Decoding, accept_length: float | None, requests: int, verified: int = 0
) -> tuple[str, str] | None:
    """Reason and sentence, None when nothing is suspicious or too little is known."""
    if decoding.algorithm == "None" or not accept_length or requests < WINDOW:
        return None
    most = ceiling(decoding, verified)
    if accept_length <= 1 + NEAR:
        return "AcceptLengthAtOne", f"no draft is ever accepted (accept length {accept_length:.2f})"
    if most is not None and accept_length >= most - NEAR:
        said = f"every draft is accepted (accept length {accept_length:.2f} of {most:.0f})"
        return "AcceptLengthAtCeiling", f"{said}: the output may repeat itself"
    return None


def suspicions(facts: Sequence[SlotFacts], parts: Mapping[str, Decoding]) -> Iterator[tuple[str, str]]:
    """Of every active engine; `parts` has the decoding of each revision."""
    for one in facts:
        said = one.reported(one.active) if one.active is not None else None
        if said is None or said.revision not in parts:
            continue
        found = suspicion(parts[said.revision], said.accept_length, said.requests, said.draft_tokens)
        if found is not None:
            yield found[0], f"{said.pod}: {found[1]}; see the runbook LingOutputSuspect"


def slo_met(slo: Slo, performance: Mapping[str, float]) -> Verdict | None:
    """None where no speed is asked for, or nobody has measured."""
    asked = {"tpotMs": slo.tpot_ms, "ttftMs": slo.ttft_ms}
    known = {key: limit for key, limit in asked.items() if limit and key in performance}
    if not known:
        return None
    missed = [f"{key} {performance[key]:g} > {limit:g}" for key, limit in known.items() if performance[key] > limit]
    if missed:
        return names.SLO_MET, False, "TooSlow", ", ".join(missed)
    return (
        names.SLO_MET,
        True,
        "Met",
        ", ".join(f"{key} {performance[key]:g} <= {limit:g}" for key, limit in known.items()),
    )
