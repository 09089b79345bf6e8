"""Where two greedy answers part: how close the engine's own scores of the two tokens were there.

In exact arithmetic a draft changes no token. In bf16 the target's scores of a row depend on the rows computed with it,
so two tokens that nearly tie may change places. That answers part at near ties, and nowhere else, is what is promised;
here it is looked at: the gap of log probabilities at that position, and how many of that text's positions have a
smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .asking import post

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import Report

TOP = 8  # candidates told for each position
NEAR = 0.25  # of log probability: scores of 16 to 32 have steps of 0.125 in bf16, and both may be a step off


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """`gap`: log probability of the one token less that of the other, absolute; None = one is not among the best.

    `closer`: share of the text's positions whose two best tokens are closer to each other.
    """

    position: int
    gap: float | None
    closer: float

    @property
    def near(self) -> bool:
        return self.gap is not None and self.gap <= NEAR


def parting(tops: Sequence[Sequence[tuple[float, int]]], one: int, two: int, position: int) -> Parting:
    """`tops`: of each position the best (log probability, token), best first."""
    scores = {token: score for score, token in tops[position]}
    gap = abs(scores[one] - scores[two]) if one in scores and two in scores else None
    gaps = [row[0][0] - row[1][0] for row in tops if len(row) > 1]
    closer = sum(each < gap for each in gaps) / len(gaps) if gap is not None and gaps else 1.0
    return Parting(position=position, gap=gap, closer=closer)


def scores(port: int, prompt: Sequence[int], answer: Sequence[int]) -> list[list[tuple[float, int]]]:
    """The engine's best tokens for each position of an answer, given the answer before it. Raises Failed."""
    body = {
        "input_ids": [*prompt, *answer], "return_logprob": True, "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": TOP, "sampling_params": {"temperature": 0, "max_new_tokens": 1},
    }  # fmt: skip
    return rows_of(post(port, "/generate", body), len(answer))


def rows_of(found: Any, count: int) -> list[list[tuple[float, int]]]:
    """The last `count` rows of an answer's `input_top_logprobs`: its first has no scores, nothing stood before it."""
    rows = [row or [] for row in found["meta_info"]["input_top_logprobs"]][-count:]
    return [[(float(score), int(token)) for score, token, *_ in row] for row in rows]


def told(
    report: Report, what: str, port: int, prompts: Sequence[Sequence[int]], pairs: Sequence[tuple[Any, Any]]
) -> None:
    """A row: every pair of answers that differ parted at a near tie, as the engine at `port` sees it."""
    found = []
    for prompt, (one, two) in zip(prompts, pairs, strict=False):
        at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
        if at is not None:
            found.append(parting(scores(port, prompt, two[: at + 1]), one[at], two[at], at))
    if found:
        said = [f"{one.position}: {'far' if one.gap is None else f'{one.gap:.3f}'}" for one in found]
        shares = [round(one.closer, 4) for one in found]
        near = all(one.near for one in found)
        report.row(f"{what}: parted at near ties, position: gap", said, f"gaps <= {NEAR}", near, closer=shares)
