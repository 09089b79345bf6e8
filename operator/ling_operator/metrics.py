"""Prometheus metrics of the operator, in a registry of its own. Series of an object end with the object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from ling_operator.keyqueue import Key

_PERFORMANCE = {  # field of status.performance: name, help, and by what to divide
    "tpotMs": ("tpot_seconds", "Mean time per output token of the active engines.", 1000),
    "ttftMs": ("ttft_seconds", "Mean time to the first token of the active engines.", 1000),
    "acceptLength": ("accept_length", "Mean tokens that a verify step of the active engines gave.", 1),
}
_REPLICAS = {"replicas": "slots", "readyReplicas": "serving", "updatedReplicas": "updated"}


class ObjectStatus:
    """The last status of each LingDeployment, told as gauges when somebody asks."""

    def __init__(self) -> None:
        self._statuses: dict[Key, Mapping[str, Any]] = {}

    def put(self, key: Key, status: Mapping[str, Any]) -> None:
        self._statuses[key] = status

    def forget(self, key: Key) -> None:
        self._statuses.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        conditions = GaugeMetricFamily(
            "ling_operator_deployment_condition",
            "1 for the status that a condition has.",
            labels=("namespace", "name", "condition", "status", "reason"),
        )
        replicas = GaugeMetricFamily(
            "ling_operator_deployment_slots", "Slots by state.", labels=("namespace", "name", "state")
        )
        for (namespace, name), status in self._statuses.items():
            for one in status.get("conditions") or ():
                conditions.add_metric((namespace, name, one["type"], one["status"], one["reason"]), 1)
            for field, state in _REPLICAS.items():
                replicas.add_metric((namespace, name, state), status.get(field) or 0)
        yield conditions
        yield replicas
        yield self._revisions()
        yield from self._performance()

    def _revisions(self) -> Metric:
        info = GaugeMetricFamily(
            "ling_operator_deployment_info", "Always 1.", labels=("namespace", "name", "current", "wanted")
        )
        for key, status in self._statuses.items():
            info.add_metric((*key, status.get("currentRevision") or "", status.get("updateRevision") or ""), 1)
        return info

    def _performance(self) -> Iterator[Metric]:
        """What nobody has measured gives no sample."""
        for field, (name, text, divisor) in _PERFORMANCE.items():
            family = GaugeMetricFamily(f"ling_operator_deployment_{name}", text, labels=("namespace", "name"))
            for key, status in self._statuses.items():
                value = (status.get("performance") or {}).get(field)
                if value is not None:
                    family.add_metric(key, value / divisor)
            yield family


class Metrics:
    """All metrics; `depth` is asked for the queue's length."""

    def __init__(self, depth: Callable[[], int]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.objects = ObjectStatus()
        self.registry.register(self.objects)
        self.reconciles = Counter(
            "ling_operator_reconciles", "Looks at one object, by how they ended.", ("result",), registry=self.registry
        )
        self.errors = Counter(
            "ling_operator_errors", "Errors while reconciling, by kind.", ("kind",), registry=self.registry
        )
        self.steps = Counter(
            "ling_operator_steps", "Steps done, by verb and kind of object.", ("verb", "kind"), registry=self.registry
        )
        self.duration = Histogram(
            "ling_operator_reconcile_seconds",
            "One look at one object: read, plan, write.",
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self.rollouts = Histogram(
            "ling_operator_rollout_seconds",
            "From the first sight of a change until all slots have it.",
            registry=self.registry,
            buckets=(1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1200, 3600),
        )
        self._depth = depth
        self.registry.register(_Depth(depth))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _Depth:
    """The queue's length, asked when somebody scrapes."""

    def __init__(self, depth: Callable[[], int]) -> None:
        self._depth = depth

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("ling_operator_queue_depth", "Objects that wait to be looked at.", value=self._depth())
