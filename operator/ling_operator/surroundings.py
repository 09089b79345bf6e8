"""What is around the pods of a slot, as frozen values: the node that they are on and the claim that they share.

Parsing only. A node is leaving once somebody cordoned it or gave it one of the taints that the operator was told of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    type Object = Mapping[str, Any]


def seconds(time: str | None) -> float:
    """An RFC 3339 time as seconds since the epoch, 0 when there is none."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def owner_uid(meta: Object) -> str:
    """The uid of the controlling owner, "" when there is none."""
    owners = [one["uid"] for one in meta.get("ownerReferences") or () if one.get("controller")]
    return owners[0] if owners else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node on which pods of ours are. `leaving` names the taint, "" while it stays; `since` is 0 when nobody says."""

    name: str
    exists: bool = True
    ready: bool = True
    leaving: str = ""
    since: float = 0.0
    allocatable: Mapping[str, str] = field(default_factory=dict)  # as quantities; empty when nobody says

    @property
    def alive(self) -> bool:
        """What is on it may answer requests."""
        return self.exists and self.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """A ResourceClaim of a slot. `devices` are POOL/DEVICE in the order of the allocation."""

    name: str
    uid: str
    slot_uid: str
    deleting: bool
    allocated: bool
    devices: tuple[str, ...] = ()


def node_view(name: str, body: Object | None, leaving_taints: Collection[str]) -> NodeView:
    """The node of that name; `body` is None when there is none."""
    if body is None:
        return NodeView(name=name, exists=False, ready=False)
    spec, status = body.get("spec") or {}, body.get("status") or {}
    conditions = status.get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    taints = [one for one in spec.get("taints") or () if one.get("key") in leaving_taints]
    stamped = [seconds(one["timeAdded"]) for one in taints if one.get("timeAdded")]
    cordoned = ("cordon",) if spec.get("unschedulable") else ()
    leaving = next((str(one["key"]) for one in taints), next(iter(cordoned), ""))
    has = dict(status.get("allocatable") or {})
    return NodeView(name=name, ready=ready, leaving=leaving, since=min(stamped, default=0.0), allocatable=has)


def claim_view(body: Object) -> ClaimView:
    meta = body["metadata"]
    allocation = (body.get("status") or {}).get("allocation")
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return ClaimView(
        name=meta["name"],
        uid=meta["uid"],
        slot_uid=owner_uid(meta),
        deleting=bool(meta.get("deletionTimestamp")),
        allocated=allocation is not None,
        devices=tuple(f"{one.get('pool')}/{one.get('device')}" for one in results),
    )
