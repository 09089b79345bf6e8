"""Turns the dial of a predictable checkpoint until its drafts are right as often as wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ling_engine.reference import config, dspark_config
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.dspark import Dspark
from ling_engine.reference.dspark_model import DsparkModel
from ling_engine.reference.generate import Decoder
from ling_engine.reference.model import Ling
from ling_engine.reference.mtp import Mtp, Nextn
from ling_engine.reference.predictable import PredictableParameters, fill
from ling_engine.reference.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from torch import Tensor

    from ling_engine.reference.speculate import Draft

TOKENS = 64  # of a measured answer
_PROMPT = b"The quick brown fox jumps over the lazy dog"
_MOST, _TURNS = 8.0, 9
_STEPS = 5  # of the NEXTN chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of the rounds of one answer."""

    acceptance: float  # drafts that were right, among those whose predecessors were
    accept_length: float  # tokens a round


class Bench:
    """A target and both of its drafts in memory, filled anew for each position of the dial."""

    def __init__(self, keys: Mapping[str, Any], dspark_keys: Mapping[str, Any], seed: int) -> None:
        self.config = c = config.parse(keys)
        self.dspark_config = d = dspark_config.parse(dspark_keys, c)
        self.target, self.mtp, self.dspark = Ling(c, d.target_layer_ids), Mtp(c), DsparkModel(d)
        self.prefix = f"model.layers.{c.num_hidden_layers}."  # of the NEXTN layer's names in the target's files
        self._seed = seed

    def numbers(self, dial: float) -> PredictableParameters:
        return PredictableParameters(self._seed, self.config.vocab_size, dial)

    def fill(self, dial: float) -> None:
        numbers = self.numbers(dial)
        fill(self.target, numbers)
        fill(self.mtp, numbers, self.prefix)
        fill(self.dspark, numbers)

    def target_parameters(self, *, nextn: bool) -> dict[str, Tensor]:
        """By their names in the target's files."""
        found: dict[str, Tensor] = dict(self.target.named_parameters())
        if nextn:
            found |= {self.prefix + name: p for name, p in self.mtp.named_parameters()}
        return found

    def decoder(self, name: str, context: int, window: int = 0) -> Decoder:
        """With the draft `nextn` or `dspark`, or with none (""); window 0 = its usual one."""
        draft: Draft | None = None
        if name == "nextn":
            draft = Nextn(self.target, self.mtp, self.config, window or _STEPS, context)
        elif name == "dspark":
            d = self.dspark_config
            draft = Dspark(self.target, self.dspark, d, window or d.block_size, context)
        return Decoder(self.target, Sequence.allocate(self.config, context + (draft.window if draft else 0)), draft)

    @torch.inference_mode()
    def measure(self, name: str) -> Measured:
        """Of a draft as the modules are filled now."""
        correct = rounds = tested = 0
        decoder = self.decoder(name, len(_PROMPT) + TOKENS)
        for found in decoder.generate(list(_PROMPT), Bounds(limit=TOKENS), lambda: True):
            if found.correct is not None:
                rounds += 1
                correct += found.correct
                tested += min(found.correct + 1, decoder.window)
        return Measured(acceptance=correct / tested, accept_length=(correct + rounds) / rounds)

    def search(self, name: str, wanted: float) -> float:
        """The dial at which the draft comes nearest to the wanted acceptance."""
        low, high, tried = 0.0, _MOST, dict[float, float]()
        for _ in range(_TURNS):
            dial = (low + high) / 2
            self.fill(dial)
            tried[dial] = self.measure(name).acceptance
            low, high = (dial, high) if tried[dial] > wanted else (low, dial)
        return min(tried, key=lambda dial: abs(tried[dial] - wanted))
