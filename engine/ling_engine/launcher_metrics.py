"""The launcher's own Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from .lifecycle import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping


class LauncherMetrics:
    """Counts across servers; gauges are set when asked."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._phase = Gauge("ling_launcher_phase", "1 for the launcher's phase.", ["phase"], registry=self._registry)
        self._agent = Gauge("ling_launcher_agent_connected", "Whether the agent answers.", registry=self._registry)
        self._backup = Gauge("ling_launcher_backup_bytes", "Weight bytes held as back-up.", registry=self._registry)
        self._ended = Counter(
            "ling_launcher_servers_ended", "Servers that ended, by exit code.", ["code"], registry=self._registry
        )
        self._times = Gauge(
            "ling_server_phase_milliseconds", "Time of the last start, by step.", ["step"], registry=self._registry
        )

    def ended(self, code: int) -> None:
        self._ended.labels(str(code)).inc()

    def phase(self, phases: Mapping[str, float]) -> None:
        for step, milliseconds in phases.items():
            self._times.labels(step).set(milliseconds)

    def text(self, phase: Phase, connected: bool, backups: Mapping[str, int]) -> str:
        for one in Phase:
            self._phase.labels(one.value).set(one is phase)
        self._agent.set(connected)
        self._backup.set(sum(backups.values()))
        return generate_latest(self._registry).decode()
