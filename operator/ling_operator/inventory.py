"""How many devices each node has, taken or not: what tells "no node has so many" from "others have them". Pure.

Of a DeviceClass only the driver is understood (`device.driver == "..."`), not what else its expressions ask. So the
numbers are upper bounds: that a node has too few is certain, that it has enough is not. Where a class names no driver,
or devices are not bound to nodes by name, nothing is said (None).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ling_api.errors import BadInput
from ling_api.quantity import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    type Object = Mapping[str, Any]

_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(["'])([a-z0-9.-]+)\1""")


def driver_of(device_class: Object | None) -> str:
    """The one driver that a DeviceClass names, "" when it names none or several, or does not exist."""
    selectors = ((device_class or {}).get("spec") or {}).get("selectors") or ()
    said = [(one.get("cel") or {}).get("expression") or "" for one in selectors]
    found = {name for text in said for _, name in _DRIVER.findall(text) if "||" not in text}
    return found.pop() if len(found) == 1 else ""


def claimable(device_class: Object | None, slices: Iterable[Object]) -> Mapping[str, int] | None:
    """Devices by node that a claim of that class could get at most; None when that cannot be told."""
    driver = driver_of(device_class)
    if not driver:
        return None
    pools: dict[str, list[Object]] = {}
    for one in (body["spec"] for body in slices):
        if one.get("driver") == driver:
            pools.setdefault((one.get("pool") or {}).get("name") or "", []).append(one)
    found: Counter[str] = Counter()
    for parts in pools.values():
        newest = max(_generation(one) for one in parts)
        current = [part for part in parts if _generation(part) == newest]
        if len(current) < ((current[0].get("pool") or {}).get("resourceSliceCount") or 0):
            return None  # just being published
        for one in current:
            if not one.get("nodeName"):
                return None
            found[one["nodeName"]] += len(one.get("devices") or ())
    return found


def pluggable(nodes: Iterable[Object], resource: str) -> Mapping[str, int]:
    """Devices by node that a device plugin offers under that name."""
    return {node["metadata"]["name"]: _offered(node, resource) for node in nodes}


def _offered(node: Object, resource: str) -> int:
    try:
        return parse_quantity(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))
    except BadInput:
        return 0


def _generation(part: Object) -> int:
    return (part.get("pool") or {}).get("generation") or 0
