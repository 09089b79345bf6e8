"""Metrics of the agent: counters kept here, everything else read from a snapshot when it is scraped.

A slot that is gone leaves no series behind, because its samples come from the snapshot alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from . import condemned
from . import decisions as do
from .timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from .facts import Slot

BUCKETS: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # seconds


@dataclass(slots=True)
class Counters:
    """What only grows, and the times from Granted to mapped."""

    answers: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)  # servers that lived and did not work
    fills: int = 0
    deaths: int = 0
    attach_counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    attach_seconds: float = 0.0
    timings: Timings = field(default_factory=Timings)
    _granted: dict[tuple[str, str], float] = field(default_factory=dict)

    def answered(self, server: str, answer: object, now: float) -> None:
        self.answers[type(answer).__name__.lower()] += 1
        if isinstance(answer, do.Fill):
            self.fills += 1
        sets = answer.sets if isinstance(answer, do.Granted) else ()
        for name in sets:
            self._granted[(server, name)] = now

    def mapped(self, server: str, name: str, now: float) -> None:
        """A rank has mapped a set; only the first word after a Granted is an attach."""
        granted = self._granted.pop((server, name), None)
        if granted is not None:
            self.attach_counts[bisect_left(BUCKETS, now - granted)] += 1
            self.attach_seconds += now - granted

    def deaths_between(self, before: Slot, after: Slot) -> None:
        """Servers that were alive in one value of a slot's facts and are dead in the next."""
        if before.launchers is after.launchers:
            return
        for uid, launcher in after.launchers.items():
            old = before.launchers.get(uid)
            if old is not None and old is not launcher and old.last_server != launcher.last_server:
                self.server_dead(launcher.last_server)

    def server_dead(self, server: str) -> None:
        self.deaths += 1
        for key in [key for key in self._granted if key[0] == server]:
            del self._granted[key]

    def killed(self, reason: str) -> None:
        self.kills[reason] += 1

    def role_changed(self, role: str) -> None:
        self.roles[role] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    slots: Mapping[str, Slot]
    counters: Counters
    open_fds: int
    streams: int
    connections: int


class AgentCollector(Collector):
    """Register with a prometheus_client registry."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield GaugeMetricFamily("ling_agent_slots", "Slots of this node", value=len(now.slots))
        yield GaugeMetricFamily(
            "ling_agent_open_fds", "Descriptors of regions, manifests, listeners", value=now.open_fds
        )
        yield GaugeMetricFamily("ling_agent_grpc_streams", "Launchers with a stream", value=now.streams)
        yield GaugeMetricFamily("ling_agent_folder_connections", "Callers on folder sockets", value=now.connections)
        yield from _of_slots(now.slots)
        yield from _of_counters(now.counters)


def _of_slots(slots: Mapping[str, Slot]) -> Iterator[Metric]:
    sets = GaugeMetricFamily("ling_agent_weight_sets", "Weight sets by state", labels=["slot", "state"])
    held = GaugeMetricFamily("ling_agent_weight_bytes", "Bytes of weight sets held", labels=["slot"])
    attachments = GaugeMetricFamily("ling_agent_attachments", "Sets attached by live servers", labels=["slot"])
    recovering = GaugeMetricFamily("ling_agent_recovering", "1 while roles are not known again", labels=["slot"])
    serving = GaugeMetricFamily("ling_agent_serving", "1 while an engine accepts", labels=["slot"])
    for name, slot in slots.items():
        for state, count in Counter(map(condemned.state_of, slot.sets.values())).items():
            sets.add_metric([name, state], count)
        held.add_metric([name], sum(each.nbytes for each in slot.sets.values()))
        attachments.add_metric([name], sum(len(each.attached) for each in slot.sets.values()))
        recovering.add_metric([name], slot.recovering)
        serving.add_metric([name], any(each.accepting for each in slot.launchers.values()))
    yield from (sets, held, attachments, recovering, serving)


def _of_counters(counters: Counters) -> Iterator[Metric]:
    answers = CounterMetricFamily("ling_agent_attach_answers", "Answers to attach requests", labels=["answer"])
    for answer, count in counters.answers.items():
        answers.add_metric([answer], count)
    roles = CounterMetricFamily("ling_agent_role_changes", "Roles set", labels=["role"])
    for role, count in counters.roles.items():
        roles.add_metric([role], count)
    kills = CounterMetricFamily("ling_agent_server_kills", "Servers killed, by what was wrong", labels=["reason"])
    for reason, count in counters.kills.items():
        kills.add_metric([reason], count)
    yield from (answers, roles, kills)
    yield CounterMetricFamily("ling_agent_fills", "Cohorts told to fill", value=counters.fills)
    yield CounterMetricFamily("ling_agent_server_deaths", "Deaths of servers", value=counters.deaths)
    total, buckets = 0, []
    for limit, count in zip((*map(str, BUCKETS), "+Inf"), counters.attach_counts, strict=True):
        total += count
        buckets.append((limit, float(total)))
    attach = HistogramMetricFamily("ling_agent_attach_seconds", "From Granted to mapped")
    attach.add_metric([], buckets, sum_value=counters.attach_seconds)
    yield attach
    for name, text, durations in (
        ("ling_agent_actuation_seconds", "Until an engine accepts, by how it came", counters.timings.actuations),
        ("ling_agent_failover_seconds", "From the acceptor's death until another accepts", counters.timings.failovers),
    ):
        histogram = HistogramMetricFamily(name, text, labels=["path"])
        for path, one in durations.items():
            histogram.add_metric([path], one.cumulative(), sum_value=one.seconds)
        yield histogram
