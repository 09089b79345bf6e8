"""The custom resources `ling.dev/v1alpha1` as frozen values.

The schema, its defaults and its rules live in `crds/*.yaml`; the defaults here are the same (a test compares them), for
objects that did not pass an API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ling_api.enginepart import BASELINE, EnginePart, revision_of
from ling_api.errors import BadInput
from ling_api.fields import Object, number, section, text
from ling_api.quantity import parse_quantity

__all__ = ["BASELINE", "EnginePart", "LingDeploymentSpec", "LingSlotSpec", "Wish", "revision_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LingDeploymentSpec:
    """`spec` of a LingDeployment. `memory` is in bytes, times in seconds."""

    part: EnginePart
    memory: int
    replicas: int = 1
    strategy: str = "Auto"
    progress_deadline_seconds: int = 900
    grace_seconds: int = 120
    port: int = 80
    hold_seconds: int = 60

    @classmethod
    def from_dict(cls, data: Object) -> LingDeploymentSpec:
        """BadInput, with the field's name, when the object makes no sense to this version."""
        rollout, cache, service = section(data, "rollout"), section(data, "weightCache"), section(data, "service")
        if "memory" not in cache:
            raise BadInput("weightCache.memory: write a quantity such as 8Gi")
        return cls(
            part=EnginePart.from_dict(data),
            memory=parse_quantity(cache["memory"]),
            replicas=number(data, "replicas", 1),
            strategy=text(rollout, "strategy", "Auto", one_of=("Auto",)),
            progress_deadline_seconds=number(rollout, "progressDeadlineSeconds", 900, least=1),
            grace_seconds=number(section(data, "drain"), "graceSeconds", 120, least=1),
            port=number(service, "port", 80, least=1),
            hold_seconds=number(service, "holdSeconds", 60, least=1),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.part.to_dict(),
            "replicas": self.replicas,
            "weightCache": {"memory": str(self.memory)},
            "rollout": {"strategy": self.strategy, "progressDeadlineSeconds": self.progress_deadline_seconds},
            "drain": {"graceSeconds": self.grace_seconds},
            "service": {"port": self.port, "holdSeconds": self.hold_seconds},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The engine pod that is to become active, if the slot is still at `term`."""

    pod: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LingSlotSpec:
    """`spec` of a LingSlot: what the operator wants of one slot. `capacity` is in bytes; `revisions` is sorted."""

    deployment: str
    revision: str
    revisions: tuple[str, ...]
    capacity: int
    grace_seconds: int
    hold_seconds: int
    wish: Wish | None = None

    @classmethod
    def from_dict(cls, data: Object) -> LingSlotSpec:
        wish = section(data, "wish")
        return cls(
            deployment=text(data, "deployment"),
            revision=text(data, "revision"),
            revisions=tuple(sorted(str(one) for one in data.get("revisions") or ())),
            capacity=number(data, "capacity", least=1),
            grace_seconds=number(data, "graceSeconds", least=1),
            hold_seconds=number(data, "holdSeconds", least=1),
            wish=Wish(pod=text(wish, "pod"), term=number(wish, "term")) if wish else None,
        )

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "deployment": self.deployment,
            "revision": self.revision,
            "revisions": list(self.revisions),
            "capacity": self.capacity,
            "graceSeconds": self.grace_seconds,
            "holdSeconds": self.hold_seconds,
        }
        if self.wish is not None:
            data["wish"] = {"pod": self.wish.pod, "term": self.wish.term}
        return data
