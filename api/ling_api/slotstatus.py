"""`status` of a LingSlot as frozen values: what the node's agent writes and the operator reads.

Reading is lenient, since operator and agent are upgraded apart: an unknown field is left out, a missing one is empty.
Times are RFC 3339 texts, memory is in bytes, durations are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

type Object = Mapping[str, Any]


def camel(name: str) -> str:
    """`last_transition_time` -> `lastTransitionTime`."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


_NAMES: dict[str, dict[str, str]] = {}


def _names(cls: type) -> dict[str, str]:
    """Camel-cased name -> field name of a dataclass, looked up once."""
    if cls.__qualname__ not in _NAMES:
        _NAMES[cls.__qualname__] = {camel(one.name): one.name for one in fields(cls)}
    return _NAMES[cls.__qualname__]


class Plain:
    """Reads and writes a dataclass of plain values under camel-cased names; None is left out."""

    __slots__ = ()

    @classmethod
    def from_dict(cls, data: Object) -> Self:
        """Fields of this version only; a null counts as missing."""
        names = _names(cls)
        return cls(**{names[key]: value for key, value in data.items() if key in names and value is not None})

    def to_dict(self) -> dict[str, Any]:
        """What goes to the API server."""
        pairs = {key: getattr(self, name) for key, name in _names(type(self)).items()}
        return {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value in pairs.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition(Plain):
    """One condition as Kubernetes has it; `status` is True, False or Unknown as text."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int | None = None

    @property
    def true(self) -> bool:
        return self.status == "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Active(Plain):
    """The engine that accepts; `pod` is "" while nobody does. `term` counts role changes."""

    pod: str = ""
    uid: str = ""
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus(Plain):
    """One engine pod as the agent knows it; `role` is gated, warm, active or draining."""

    pod: str
    uid: str = ""
    revision: str = ""
    role: str = ""
    phase: str = ""
    phases: Mapping[str, float] | None = None
    plan_bytes: int | None = None
    plan: Mapping[str, int] | None = None
    deaths: int = 0
    requests: int = 0
    in_flight: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    accept_length: float | None = None
    draft_tokens: int = 0
    samples: int = 0
    window_seconds: float = 0.0
    last_exit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSetStatus(Plain):
    """One weight set in the slot's memory; `state` is filling, sealed or dropping."""

    set: str
    role: str = ""
    rank: int = 0
    bytes: int = 0
    state: str = ""
    progress: float | None = None
    holders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityStatus(Plain):
    """The slot's memory: all of it, what weights take, what the let-through servers' plans take."""

    total: int = 0
    weights: int = 0
    plans: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LingSlotStatus:
    """All of it. `active` is None before the agent has said anything."""

    node: str = ""
    observed_generation: int | None = None
    listener: bool = False
    gpus: tuple[str, ...] = ()  # UUIDs in rank order; () = none, or not known
    compute_capability: str = ""  # of those GPUs, as 9.0; "" = none, or not known
    message: str = ""
    active: Active | None = None
    engines: tuple[EngineStatus, ...] = ()
    weight_sets: tuple[WeightSetStatus, ...] = ()
    capacity: CapacityStatus | None = None
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def from_dict(cls, data: Object) -> LingSlotStatus:
        active, capacity = data.get("active"), data.get("capacity")
        return cls(
            node=data.get("node") or "",
            observed_generation=data.get("observedGeneration"),
            listener=bool(data.get("listener")),
            gpus=tuple(str(one) for one in _list(data, "gpus")),
            compute_capability=data.get("computeCapability") or "",
            message=data.get("message") or "",
            active=Active.from_dict(active) if active is not None else None,
            engines=tuple(EngineStatus.from_dict(one) for one in _list(data, "engines")),
            weight_sets=tuple(WeightSetStatus.from_dict(one) for one in _list(data, "weightSets")),
            capacity=CapacityStatus.from_dict(capacity) if capacity is not None else None,
            conditions=tuple(Condition.from_dict(one) for one in _list(data, "conditions")),
        )

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "node": self.node,
            "listener": self.listener,
            "gpus": list(self.gpus),
            "computeCapability": self.compute_capability,
            "message": self.message,
            "engines": [one.to_dict() for one in self.engines],
            "weightSets": [one.to_dict() for one in self.weight_sets],
            "conditions": [one.to_dict() for one in self.conditions],
        }
        if self.observed_generation is not None:
            data["observedGeneration"] = self.observed_generation
        if self.active is not None:
            data["active"] = self.active.to_dict()
        if self.capacity is not None:
            data["capacity"] = self.capacity.to_dict()
        return data

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, or None."""
        return next((one for one in self.conditions if one.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of this type says True."""
        found = self.condition(kind)
        return found is not None and found.true


def _list(data: Object, key: str) -> Sequence[Any]:
    return data.get(key) or ()
