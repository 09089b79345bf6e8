"""Speculation at length: the same tokens over seeds, prompts, windows, stops; draws distributed as the target says."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.speculation import CONTEXT, DIALS, DSPARK_KEYS, KEYS, acceptance, bench, run, tokens

from ling_engine.reference import predictable, sampling, speculate
from ling_engine.reference.bounds import GREEDY, Sampling
from ling_engine.reference.dial import Bench
from ling_engine.reference.dspark_model import DsparkBlock
from ling_engine.reference.model import Block
from ling_engine.reference.sequence import Sequence
from ling_engine.reference.weights import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ling_engine.reference.sequence import Step
    from ling_engine.reference.speculate import Round

WINDOWS = [("nextn", 1), ("nextn", 2), ("nextn", 5), ("dspark", 1), ("dspark", 4), ("dspark", 8)]
SEEDS = (0, 1)


def cases(name: str, window: int) -> list[tuple[float, int, list[int], int, int | None, Sampling]]:
    """(level, seed, prompt, limit, eos, sampling), always the same ones."""
    drawing, found = random.Random(f"{name}{window}"), []
    for level in DIALS:
        for seed in SEEDS:
            prompt = [drawing.randrange(32, 127) for _ in range(drawing.choice((1, 2, 17, 65)))]
            drawn = Sampling(temperature=0.6, top_p=0.9, seed=drawing.randrange(99))
            limit = drawing.randrange(30, 40) * (window if level > 0.6 else 1)
            found.append((level, seed, prompt, min(limit, CONTEXT - len(prompt)), None, GREEDY))
            found.append((level, seed, prompt, 20, drawing.randrange(32, 127), drawn))
    return found


@pytest.mark.parametrize(("name", "window"), WINDOWS)
def test_the_same_tokens_with_rounds_that_accept_none_one_any_and_all(name: str, window: int) -> None:
    seen: Counter[int] = Counter()
    for level, seed, prompt, limit, eos, how in cases(name, window):
        made = bench(DIALS[level], seed)
        found = run(made, name, window, prompt, limit=limit, eos=eos, sampling=how)
        assert tokens(found) == tokens(run(made, "", 0, prompt, limit=limit, eos=eos, sampling=how))
        seen.update(one.correct for one in found if one.correct is not None)
        assert max(len(one.tokens) for one in found) <= window + 1
    assert sorted(seen) == list(range(window + 1)), "no proof: some number of accepted drafts never came up"


@pytest.mark.parametrize("level", DIALS)
@pytest.mark.parametrize(("name", "window"), [("nextn", 5), ("dspark", 8)])
def test_drafts_are_right_about_as_often_as_constructed(level: float, name: str, window: int) -> None:
    rounds: list[Round] = []
    for seed in SEEDS:
        rounds += run(bench(DIALS[level], seed), name, window, list(b"The quick brown"), limit=100)
    assert acceptance(rounds, window) == pytest.approx(level, abs=0.2)


DRAWS = 20_000
SMALL = {"vocab_size": 16}
HOT = 1.5
PROMPT, ANCHOR = [3, 1, 4, 1, 5, 9, 2, 6], 7


class Frozen(Sequence):
    """Every round begins at the same place."""

    def commit(self, step: Step, rows: int) -> None: ...


def remembered(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's answer to the same rows at the same place is computed once: it depends on nothing else."""
    known: dict[tuple[int, bytes], Any] = {}

    def found(self: object, h: Tensor, *others: Any) -> Any:
        key = id(self), bytes(bytes_of(h.contiguous()))
        if key not in known:
            known[key] = forward(self, h, *others)
        return known[key]

    return found


@torch.inference_mode()
def drawn_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[tuple[int, ...]], Counter[int], Bench]:
    """How often each token came behind each tokens of its round, over as many seeds; and how many drafts were right."""
    monkeypatch.setattr(predictable, "damp", lambda rows: rows)  # so few ids are no text
    made = Bench({**KEYS, **SMALL}, {**DSPARK_KEYS, **SMALL, "mask_token_id": 15}, 3)
    made.fill(1.0)
    decoder = made.decoder(name, 64, 2)
    sequence, draft = decoder._sequence, decoder._draft
    step = made.target(torch.tensor(PROMPT), sequence)
    sequence.commit(step, len(PROMPT))
    assert draft is not None
    draft.extend(step, [*PROMPT[1:], ANCHOR])
    frozen = Frozen(**{f.name: getattr(sequence, f.name) for f in fields(Sequence)})
    monkeypatch.setattr(Block, "forward", remembered(Block.forward))
    monkeypatch.setattr(DsparkBlock, "forward", remembered(DsparkBlock.forward))
    came: Counter[tuple[int, ...]] = Counter()
    right: Counter[int] = Counter()
    for seed in range(DRAWS):
        choose = partial(sampling.choose, sampling=Sampling(temperature=HOT, top_p=0.95, seed=seed))
        found = next(speculate.rounds(made.target, frozen, draft, ANCHOR, choose))
        came.update(tuple(found.tokens[: n + 1]) for n in range(len(found.tokens)))
        right[found.correct or 0] += 1
    return came, right, made


@torch.inference_mode()
def misfit(came: Counter[tuple[int, ...]], made: Bench) -> tuple[float, float]:
    """Chi-square of all draws against the target's own distributions, and what it exceeds once in 10,000 times."""
    total, freedom = 0.0, 0
    for before in sorted({emitted[:-1] for emitted in came}):
        ids = torch.tensor([*PROMPT, ANCHOR, *before])
        scores = made.target.logits(made.target(ids, Sequence.allocate(made.config, 64)).hidden[-1:])
        likely = sampling.probabilities(scores, Sampling(temperature=HOT, top_p=0.95))[0].tolist()
        seen = [came[*before, token] for token in range(len(likely))]
        assert all(not count for count, share in zip(seen, likely, strict=True) if share == 0)
        wanted = [share * sum(seen) for share in likely]
        cells = [(count, want) for count, want in zip(seen, wanted, strict=True) if want >= 5]
        rest = sum(seen) - sum(count for count, _ in cells), sum(seen) - sum(want for _, want in cells)
        cells += [rest] if rest[1] >= 5 else []
        total += sum((count - want) ** 2 / want for count, want in cells)
        freedom += max(len(cells) - 1, 0)
    return total, freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("name", ["nextn", "dspark"])
def test_draws_with_a_draft_are_distributed_as_the_target_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as inner:
        came, right, made = drawn_rounds(name, inner)
    assert sum(count for emitted, count in came.items() if len(emitted) == 1) == DRAWS
    assert min(right[n] for n in range(3)) > DRAWS / 50
    found, most = misfit(came, made)
    assert found < most


def test_the_check_notices_noise_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sampling._noise
    monkeypatch.setattr(sampling, "_noise", lambda seed, _position, width: right(seed, 0, width))
    with monkeypatch.context() as inner:
        came, _, made = drawn_rounds("nextn", inner)
    found, most = misfit(came, made)
    assert found > most
