"""The custom resources `ling.dev/v1alpha1` as frozen values.

The schema, its defaults and its rules live in `crds/*.yaml`; the defaults here are the same (a test compares them), for
objects that did not pass an API server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ling_api.engine import REFERENCE, Place
from ling_api.enginepart import BASELINE, EnginePart, revision_of
from ling_api.errors import BadInput
from ling_api.fields import Object, measure, number, section, text
from ling_api.gpu import Gpu
from ling_api.quantity import parse_quantity

__all__ = ["BASELINE", "EnginePart", "LingDeploymentSpec", "LingSlotSpec", "Standby", "Wish", "revision_of"]

WARM: Final = "Warm"
GATED: Final = "Gated"
RECREATE: Final = "Recreate"


def flag(data: Object, key: str) -> bool:
    """A field that is true or false, false when it is left out."""
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(f"{key}: write true or false, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """Engines of a slot that wait to take over: `Warm` ones have attached and warmed up, `Gated` ones are checked."""

    replicas: int = 0
    mode: str = WARM

    @classmethod
    def from_dict(cls, data: Object) -> Standby:
        return cls(
            replicas=number(data, "replicas", 0),
            mode=text(data, "mode", WARM, one_of=(WARM, GATED)),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"replicas": self.replicas, "mode": self.mode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The speed that is wanted, in ms; None asks for nothing."""

    tpot_ms: float | None = None
    ttft_ms: float | None = None

    @classmethod
    def from_dict(cls, data: Object) -> Slo:
        return cls(tpot_ms=measure(data, "tpotMs"), ttft_ms=measure(data, "ttftMs"))

    def to_dict(self) -> dict[str, Any]:
        stated = {"tpotMs": self.tpot_ms, "ttftMs": self.ttft_ms}
        return {key: value for key, value in stated.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LingDeploymentSpec:
    """`spec` of a LingDeployment. `memory` is in bytes, 0 for weights in a GPU's memory; times are in seconds."""

    part: EnginePart
    memory: int
    replicas: int = 1
    strategy: str = "Auto"
    progress_deadline_seconds: int = 900
    grace_seconds: int = 120
    port: int = 80
    hold_seconds: int = 60
    standby: Standby = field(default_factory=Standby)
    spare_slots: int = 0
    paused: bool = False
    lame_duck_seconds: int = 15
    replacement_timeout_seconds: int = 600
    slo: Slo = field(default_factory=Slo)

    @classmethod
    def from_dict(cls, data: Object) -> LingDeploymentSpec:
        """BadInput, with the field's name, when the object makes no sense to this version."""
        rollout, cache, service = section(data, "rollout"), section(data, "weightCache"), section(data, "service")
        drain = section(data, "drain")
        part = EnginePart.from_dict(data)
        if part.engine.runtime == REFERENCE and "memory" not in cache:
            raise BadInput("weightCache.memory: write a quantity such as 8Gi")
        return cls(
            part=part,
            memory=parse_quantity(cache["memory"]) if "memory" in cache else 0,
            replicas=number(data, "replicas", 1),
            strategy=text(rollout, "strategy", "Auto", one_of=("Auto", RECREATE)),
            progress_deadline_seconds=number(rollout, "progressDeadlineSeconds", 900, least=1),
            grace_seconds=number(drain, "graceSeconds", 120, least=1),
            port=number(service, "port", 80, least=1),
            hold_seconds=number(service, "holdSeconds", 60, least=1),
            standby=Standby.from_dict(section(data, "standby")),
            spare_slots=number(cache, "spareSlots", 0),
            paused=flag(rollout, "paused"),
            lame_duck_seconds=number(drain, "lameDuckSeconds", 15),
            replacement_timeout_seconds=number(drain, "replacementTimeoutSeconds", 600),
            slo=Slo.from_dict(section(data, "slo")),
        )

    def to_dict(self) -> dict[str, Any]:
        part = self.part.to_dict()
        memory = {"memory": str(self.memory)} if self.memory else {}
        return {
            **part,
            "replicas": self.replicas,
            "standby": self.standby.to_dict(),
            "weightCache": {**part["weightCache"], **memory, "spareSlots": self.spare_slots},
            "rollout": {
                "strategy": self.strategy,
                "progressDeadlineSeconds": self.progress_deadline_seconds,
                "paused": self.paused,
            },
            "drain": {
                "lameDuckSeconds": self.lame_duck_seconds,
                "graceSeconds": self.grace_seconds,
                "replacementTimeoutSeconds": self.replacement_timeout_seconds,
            },
            "service": {"port": self.port, "holdSeconds": self.hold_seconds},
            "slo": self.slo.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The engine pod that is to become active, if the slot is still at `term`."""

    pod: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LingSlotSpec:
    """`spec` of a LingSlot: what the operator wants of one slot. `revisions` is sorted.

    `capacity` is in bytes of host memory; 0 = the weights lie in the GPU's memory, whose size the engines tell.

    `spare`: it holds weights and serves nobody yet. `leaving`: it is being taken away, its last engine is a lame duck.
    """

    deployment: str
    revision: str
    revisions: tuple[str, ...]
    capacity: int
    grace_seconds: int
    hold_seconds: int
    wish: Wish | None = None
    gpu: Gpu = field(default_factory=Gpu)
    place: Place = field(default_factory=Place)
    standby: Standby = field(default_factory=Standby)
    spare: bool = False
    leaving: bool = False
    lame_duck_seconds: int = 15
    replacement_timeout_seconds: int = 600

    @classmethod
    def from_dict(cls, data: Object) -> LingSlotSpec:
        wish = section(data, "wish")
        return cls(
            deployment=text(data, "deployment"),
            revision=text(data, "revision"),
            revisions=tuple(sorted(str(one) for one in data.get("revisions") or ())),
            capacity=number(data, "capacity"),
            grace_seconds=number(data, "graceSeconds", least=1),
            hold_seconds=number(data, "holdSeconds", least=1),
            wish=Wish(pod=text(wish, "pod"), term=number(wish, "term")) if wish else None,
            gpu=Gpu.from_dict(section(data, "gpu")),
            place=Place.from_dict(section(data, "place")),
            standby=Standby.from_dict(section(data, "standby")),
            spare=flag(data, "spare"),
            leaving=flag(data, "leaving"),
            lame_duck_seconds=number(data, "lameDuckSeconds", 15),
            replacement_timeout_seconds=number(data, "replacementTimeoutSeconds", 600),
        )

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "deployment": self.deployment,
            "revision": self.revision,
            "revisions": list(self.revisions),
            "capacity": self.capacity,
            "graceSeconds": self.grace_seconds,
            "holdSeconds": self.hold_seconds,
            "gpu": self.gpu.to_dict(),
            "standby": self.standby.to_dict(),
            "spare": self.spare,
            "leaving": self.leaving,
            "lameDuckSeconds": self.lame_duck_seconds,
            "replacementTimeoutSeconds": self.replacement_timeout_seconds,
        }
        if self.place != Place():
            data["place"] = self.place.to_dict()
        if self.wish is not None:
            data["wish"] = {"pod": self.wish.pod, "term": self.wish.term}
        return data
