"""How a slot gets its GPUs: the field `gpu`, a part of the slot's shape. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ling_api.errors import BadInput
from ling_api.fields import Object, number, text

NONE: Final = "None"
RESOURCE_CLAIM: Final = "ResourceClaim"
DEVICE_PLUGIN: Final = "DevicePlugin"
ALLOCATIONS: Final = (NONE, RESOURCE_CLAIM, DEVICE_PLUGIN)
DEVICE_CLASS: Final = "gpu.nvidia.com"
RESOURCE: Final = "nvidia.com/gpu"
_TOLERATION: Final = ("key", "operator", "value", "effect")

# what each field meant when it entered the schema; see enginepart.BASELINE
BASELINE: Final[Object] = {
    "allocation": NONE,
    "deviceClass": DEVICE_CLASS,
    "count": 1,
    "resource": RESOURCE,
    "tolerations": [],
}


def _tolerations(data: Object) -> tuple[tuple[tuple[str, str], ...], ...]:
    found = data.get("tolerations") or ()
    if not isinstance(found, Sequence) or not all(isinstance(one, Mapping) for one in found):
        raise BadInput("tolerations: write a list of objects with key, operator, value, effect")
    return tuple(tuple((key, text(one, key)) for key in _TOLERATION if key in one) for one in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`gpu` of a LingDeployment and a LingSlot. `device_class` is for ResourceClaim, `resource` for DevicePlugin."""

    allocation: str = NONE
    device_class: str = DEVICE_CLASS
    count: int = 1
    resource: str = RESOURCE
    tolerations: tuple[tuple[tuple[str, str], ...], ...] = ()

    @classmethod
    def from_dict(cls, data: Object) -> Gpu:
        return cls(
            allocation=text(data, "allocation", NONE, one_of=ALLOCATIONS),
            device_class=text(data, "deviceClass", DEVICE_CLASS),
            count=number(data, "count", 1, least=1),
            resource=text(data, "resource", RESOURCE),
            tolerations=_tolerations(data),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "allocation": self.allocation,
            "deviceClass": self.device_class,
            "count": self.count,
            "resource": self.resource,
            "tolerations": [dict(one) for one in self.tolerations],
        }

    @property
    def claimed(self) -> bool:
        """The slot has a ResourceClaim."""
        return self.allocation == RESOURCE_CLAIM

    @property
    def plugged(self) -> bool:
        """The engine pod owns the GPU."""
        return self.allocation == DEVICE_PLUGIN
