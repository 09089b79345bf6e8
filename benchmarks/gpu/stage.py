"""What the parts of an experiment share: the lab, the report, engines that are up, answers that are expected."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import parity

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from .lab import Lab
    from .parity import Pair
    from .report import Report


@dataclass(slots=True)
class Stage:
    """What the parts share."""

    lab: Lab
    report: Report
    args: argparse.Namespace
    model: Path
    shape: Path
    pairs: dict[str, Pair] = field(default_factory=dict)
    expected: dict[str, list[Any]] = field(default_factory=dict)  # answers by mode
    idle_mib: int = 0

    @property
    def modes(self) -> list[str]:
        return list(self.args.modes.split(","))

    def pair(self, mode: str) -> Pair:
        """Our engine of that mode, serving; started if there is none. Raises Failed."""
        pair = self.pairs.get(mode)
        if pair is None or pair.slot is None or not self.lab.alive(pair.pod):
            pair = parity.ours_alone(self.lab, self.report, self.model, mode, patience=self.args.patience)
            self.pairs[mode] = pair
        elif pair.slot is not None:  # the part before may have killed its server
            pair.slot.serves(pair.pod, self.args.patience)
        return pair

    def drop_stock(self) -> None:
        for pair in self.pairs.values():
            if pair.stock is not None:
                pair.stock.stop()
                pair.stock = None

    def drop_ours(self, *but: str) -> None:
        for mode, pair in self.pairs.items():
            if mode not in but and pair.slot is not None:
                self.lab.stop(pair.pod, signal.SIGTERM)
