"""Time from token to token, of two engines that take turns, and of one beside what others do."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_bench import intervals

from .parity import prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lab import Slot
    from .parity import Pair
    from .report import Report


def pairs(report: Report, pair: Pair, count: int = 12, prompt: int = 1024, new: int = 1024) -> None:
    """Attached and disk-loaded answer the same prompt, one after the other, the order changing from pair to pair."""
    if pair.stock is None or pair.slot is None:
        return
    long = prompts()[-1]
    ids = (long * (prompt // len(long) + 1))[:prompt]
    for engine in (pair.slot, pair.stock):
        engine.ask(ids, 64)
    found, accepts, first = [], [], []
    for number in range(count):
        times: dict[bool, Any] = {}
        for ours in (number % 2 == 0, number % 2 == 1):
            times[ours] = (pair.slot if ours else pair.stock).ask(ids, new)
        found.append((times[True].tpot * 1000, times[False].tpot * 1000))
        accepts.append(times[True].accept)
        first.append((times[True].ttft * 1000, times[False].ttft * 1000))
    ratio, low, high = intervals.paired_ratio(found)
    mode = pair.mode
    means = [statistics.fmean(column) for column in zip(*found, strict=True)]
    said = f"{ratio:.4f} [{low:.4f}, {high:.4f}]"
    report.row(
        f"{mode} TPOT attached / disk-loaded, {count} pairs of {new}", said, "upper <= 1.02", high <= 1.02, pairs=found
    )
    report.row(
        f"{mode} TPOT ms, attached and disk-loaded", [round(one, 3) for one in means], accept=statistics.fmean(accepts)
    )
    report.row(f"{mode} TTFT ms of {prompt} tokens", [round(statistics.median(c), 1) for c in zip(*first, strict=True)])


class Decoding:
    """Answers back to back on one engine; every gap between arrivals is kept with its time."""

    def __init__(self, slot: Slot, new: int = 1024) -> None:
        self._slot, self._new = slot, new
        self._ending = threading.Event()
        self.gaps: list[tuple[float, float]] = []  # when the later one arrived, ms
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ids = prompts()[0]
        while not self._ending.is_set():
            try:
                times = self._slot.ask(ids, self._new).times
            except Exception as error:
                self.failed.append(repr(error))
                return
            self.gaps += [(two, (two - one) * 1000) for one, two in itertools.pairwise(times)]

    def between(self, begin: float, end: float) -> list[float]:
        return [gap for when, gap in self.gaps if begin <= when < end]

    def end(self) -> None:
        self._ending.set()
        self._thread.join(60)


def spread(gaps: list[float]) -> dict[str, float]:
    """ms."""
    ordered = sorted(gaps)
    if not ordered:
        return {"steps": 0}
    return {
        "steps": len(ordered),
        "mean": round(statistics.fmean(ordered), 3),
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[int(len(ordered) * 0.99)], 3),
        "max": round(ordered[-1], 2),
    }


@dataclass(slots=True)
class Turns:
    """Windows of an engine that decodes, round by round: alone, beside each other thing in turn, alone again.

    An engine's steps drift by several per cent within a minute, so each window is compared with the windows alone right
    before and after its round, and the ratio is told with the interval that resampling the rounds gives.
    """

    busy: Decoding
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by name, one of each round

    def take(self, name: str, step: Callable[[], None]) -> None:
        begin = time.monotonic()
        step()
        self.spans.setdefault(name, []).append((begin, time.monotonic()))

    def windows(self, name: str) -> list[list[float]]:
        """Steps in ms. To be asked when decoding has ended: an answer's steps are known when it is complete."""
        return [self.busy.between(*span) for span in self.spans[name]]

    def ratios(self, name: str) -> list[tuple[float, float]]:
        """Of each round: the mean step beside it, and the mean of the windows alone around it."""
        alone = [statistics.fmean(gaps) if gaps else 0.0 for gaps in self.windows("alone")]
        found = []
        for number, gaps in enumerate(self.windows(name)):
            base = statistics.fmean(alone[number : number + 2])
            if gaps and base:
                found.append((statistics.fmean(gaps), base))
        return found


_GOALS = {"parked": 1.02, "warming": 1.05}  # of the interval's upper end


def told(report: Report, what: str, turns: Turns) -> None:
    """A row for each kind of window."""
    for name in turns.spans:
        windows = turns.windows(name)
        gaps = [gap for window in windows for gap in window]
        if name == "alone":
            means = [round(statistics.fmean(one), 3) for one in windows if one]
            report.row(f"{what}: step alone, ms by window", means, spread=spread(gaps))
            continue
        pairs_of = turns.ratios(name)
        if len(pairs_of) < len(windows) or not pairs_of:
            report.row(f"{what}: step beside {name}", "no steps in a window", "steps", False)
            continue
        ratio, low, high = intervals.paired_ratio(pairs_of)
        goal = _GOALS.get(name)
        report.row(
            f"{what}: step beside {name} / alone, {len(pairs_of)} rounds",
            f"{ratio:.3f} [{low:.3f}, {high:.3f}]",
            f"upper <= {goal}" if goal else "",
            high <= goal if goal else None,
            rounds=pairs_of,
            spread=spread(gaps),
        )
