"""What a run of load saw, from the client's rows to figures and goals. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.continuity_events import ACTS

DEATHS = {"server", *(name for name, act in ACTS.items() if act.death)}
TIGHT_GOAL = 50.0  # ms that a gap may have beyond the steady one and the new engine's own start
RESET_S = (
    0.5  # until a dead process's reset has reached every client, on a busy machine: what is sent meanwhile dies too
)


@dataclass(slots=True)
class Report:
    """What one run of load saw. Times in ms; `gaps`: longest time without a response around each event."""

    event: str
    mode: str
    rate: float
    sent: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)  # fork to accepting of the engine that came, by its own clock
    slowest: list[float] = field(default_factory=list)
    steady_gap: float = 0.0  # 99 of 100 times between first tokens while nothing happens are shorter
    taken: int = 0  # broken requests that were under way when the event happened, or sent before its reset came
    late_ms: float = 0.0  # failed requests were sent this long after the event at most
    steady_p50: float = 0.0
    steady_p99: float = 0.0
    examples: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def ok(self) -> bool:
        """A killed server may take along what was in flight; nothing else may fail at all."""
        return self.failed == self.allowed

    @property
    def allowed(self) -> int:
        """Requests that a death took along; what broke later, or for no death, is not among them."""
        return self.taken if self.event in DEATHS else 0

    @property
    def gap(self) -> float:
        """The median of the events' gaps beyond the steady one, in ms."""
        return max(0.0, statistics.median(self.gaps) - self.steady_gap) if self.gaps else 0.0

    @property
    def beyond_engine(self) -> float | None:
        """The median of what a gap has beyond the steady one and the engine's own start, in ms; None: not known."""
        if not self.engine or len(self.engine) != len(self.gaps):
            return None
        beyond = [gap - own - self.steady_gap for gap, own in zip(self.gaps, self.engine, strict=True)]
        return max(0.0, statistics.median(beyond))


def analyse(event: str, mode: str, rate: float, rows: list[dict[str, Any]], spans: list[tuple[float, float]]) -> Report:
    """Rows of the client and the events' begin and end to what is reported."""
    report = Report(event, mode, rate, sent=len(rows))
    failed = [row for row in rows if row["failed"]]
    report.failures = dict(Counter(row["failed"] for row in failed))
    report.examples = sorted({row["why"] for row in failed})[:5]
    ends = sorted(row.get("first") or row["ended"] for row in rows if not row["failed"])
    report.steady_gap = _steady_gap(ends, spans)
    steady = sorted((row["ended"] - row["due"]) * 1000 for row in rows if row["kind"] == "work" and not row["failed"])
    for begin, end in spans:
        near = [t for t in ends if begin - 0.5 <= t <= end + 1]
        report.gaps.append(max((b - a for a, b in itertools.pairwise(near)), default=0.0) * 1000)
        during = [row for row in rows if row["due"] <= end and row["ended"] >= begin]
        report.in_flight.append(sum(row["sent"] <= begin <= row["ended"] for row in rows))
        report.slowest.append(max(((row["ended"] - row["due"]) * 1000 for row in during), default=0.0))
        report.taken += sum(
            row["failed"] == "broken" and row["sent"] <= begin + RESET_S and row["ended"] >= begin for row in failed
        )
        late = [row["sent"] - begin for row in failed if begin <= row["sent"] <= end + 1]
        report.late_ms = max(report.late_ms, *(x * 1000 for x in late), 0.0)
    if steady:
        report.steady_p50 = steady[len(steady) // 2]
        report.steady_p99 = steady[min(len(steady) - 1, len(steady) * 99 // 100)]
    return report


def _steady_gap(ends: list[float], spans: list[tuple[float, float]]) -> float:
    """Of the times when nothing happened nor had happened in the last second, in ms."""
    quiet = [
        b - a for a, b in itertools.pairwise(ends) if not any(begin - 0.1 <= b and a <= end + 1 for begin, end in spans)
    ]
    return sorted(quiet)[len(quiet) * 99 // 100] * 1000 if quiet else 0.0


def together(runs: list[Report]) -> Report:
    """Several runs of one event as one report."""
    whole = Report(runs[0].event, runs[0].mode, runs[0].rate)
    for run in runs:
        whole.sent += run.sent
        whole.failures = dict(Counter(whole.failures) + Counter(run.failures))
        whole.in_flight, whole.gaps = whole.in_flight + run.in_flight, whole.gaps + run.gaps
        whole.slowest += run.slowest
        whole.engine += run.engine
        whole.taken += run.taken
        whole.late_ms = max(whole.late_ms, run.late_ms)
        whole.examples = sorted({*whole.examples, *run.examples})[:5]
    for name in ("steady_gap", "steady_p50", "steady_p99"):
        setattr(whole, name, statistics.median(getattr(run, name) for run in runs))
    return whole


def line(report: Report) -> str:
    failures = ", ".join(f"{count} {kind}" for kind, count in report.failures.items()) or "-"
    middle = statistics.median(report.gaps) if report.gaps else 0.0
    most = max(report.gaps, default=0.0)
    return (
        f"{report.event:<17}{report.mode:<6}{len(report.gaps):>3}{report.sent:>7}  {failures:<24}"
        f"{sum(report.in_flight):>5}{middle:>8.0f} {f'({most:.0f})':<8}{statistics.median(report.engine or [0]):>6.0f}"
        f"{report.steady_gap:>8.0f}"
        f"{max(report.slowest, default=0):>9.0f}{report.steady_p50:>8.0f} / {report.steady_p99:.0f}"
    )


HEAD = (
    "event            mode   n   sent  failed                  "
    "in fl.     gap (max)  engine  steady  slowest  p50 / p99 (ms)"
)


def figures(report: Report) -> list[dict[str, Any]]:
    """The report's goals as `make bench` has them."""
    name = f"continuity.{report.event}.{report.mode}"
    goal = ACTS[report.event].goal if report.event in ACTS else None
    rows: list[tuple[str, float, str, float | None]] = [
        (f"{name}.refused", report.failures.get("refused", 0), "requests", 0),
        (f"{name}.failed", report.failed - report.allowed, "requests", 0),
        (f"{name}.gap-beyond-steady", round(report.gap, 1), "ms", goal),
    ]
    found = [
        {"name": n, "value": value, "unit": unit, "goal": most, "ok": most is None or value <= most}
        for n, value, unit, most in rows
    ]
    if report.event in ACTS and ACTS[report.event].tight and report.beyond_engine is not None:
        beyond = round(report.beyond_engine, 1)
        row = {"name": f"{name}.gap-beyond-engine", "value": beyond, "unit": "ms", "goal": TIGHT_GOAL}
        found.append({**row, "ok": beyond <= TIGHT_GOAL})
    gap = round(max(report.gaps, default=0.0), 1)
    return [*found, {"name": f"{name}.longest-gap", "value": gap, "unit": "ms", "goal": None, "ok": True}]
