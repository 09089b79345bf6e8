"""What the API server's objects and the kubelet's device list mean for the agent: callers and slots, no I/O.

A caller is a pod on this node that a LingSlot controls. Which device it has, only the kubelet knows, and it knows pods
by name; names are used again, so a device is bound to a pod's uid the moment both are seen together (`Devices`), and
stays bound until the pod object is gone or the kubelet gives the device away again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ling_api import names
from ling_api.v1alpha1 import WARM, LingSlotSpec

from . import pace
from .directory import Caller, SlotSpec, Wish
from .static import Directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"  # the taint of a cordon


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a slot on this node."""

    namespace: str
    name: str
    uid: str
    slot: str  # "namespace/name"
    slot_uid: str
    component: str  # "slot" | "engine"
    revision: str
    going: bool = False  # it has a deletion timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotObject:
    uid: str
    spec: SlotSpec
    replacement_timeout: float = 0.0  # seconds after its node began to be left
    times: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of its conditions, as the API server has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Whether the node is being left, and since when (Unix time; None: its taints do not say)."""

    leaving: bool = False
    since: float | None = None


@dataclass(slots=True)
class Seen[T]:
    """What a mirror of the API server has of one kind, by "namespace/name"; `synced` once it was listed."""

    objects: dict[str, T] = field(default_factory=dict)
    synced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Which device the kubelet gave to which pod."""

    given: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # not bound yet: (namespace, name) by device
    bound: Mapping[str, str] = field(default_factory=dict)  # pod uid by device


def pod_of(body: Mapping[str, Any]) -> Pod | None:
    """The pod of a slot in a Pod object; None for any other pod."""
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    component = labels.get(names.LABEL_COMPONENT)
    owner = next((each for each in meta.get("ownerReferences") or () if each.get("controller")), None)
    if owner is None or (owner.get("apiVersion"), owner.get("kind")) != (names.API_VERSION, "LingSlot"):
        return None
    if component not in (names.COMPONENT_SLOT, names.COMPONENT_ENGINE):
        return None
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        slot=f"{meta['namespace']}/{owner['name']}",
        slot_uid=owner.get("uid", ""),
        component=component,
        revision=labels.get(names.LABEL_REVISION, "") if component == names.COMPONENT_ENGINE else "",
        going="deletionTimestamp" in meta,
    )


def slot_of(body: Mapping[str, Any]) -> SlotObject:
    """The slot in a LingSlot object. Raises BadInput when its spec makes no sense to this version."""
    meta, spec = body["metadata"], LingSlotSpec.from_dict(body.get("spec") or {})
    return SlotObject(
        uid=meta["uid"],
        replacement_timeout=spec.replacement_timeout_seconds,
        times=pace.times(body.get("status") or {}),
        spec=SlotSpec(
            name=f"{meta['namespace']}/{meta['name']}",
            deployment=spec.deployment,
            revision=spec.revision,
            revisions=frozenset(spec.revisions),
            capacity=spec.capacity,
            grace_seconds=spec.grace_seconds,
            hold_seconds=spec.hold_seconds,
            wish=Wish(pod=spec.wish.pod, term=spec.wish.term) if spec.wish is not None else None,
            leaving="deletionTimestamp" in meta,
            standbys=spec.standby.replicas if spec.standby.mode == WARM else 0,
            lame_duck_seconds=spec.lame_duck_seconds,
            retiring=spec.leaving,
            generation=meta.get("generation", 0),
        ),
    )


def node_of(body: Mapping[str, Any], taints: frozenset[str]) -> Node:
    """Since when the node is being left: the oldest time of its taints of these keys.

    Where no taint has a time it counts from the moment that the agent first saw it.
    """
    spec = body.get("spec") or {}
    found = [taint for taint in spec.get("taints") or () if taint.get("key") in taints]
    times = [_unix(taint["timeAdded"]) for taint in found if taint.get("timeAdded")]
    leaving = bool(found) or (bool(spec.get("unschedulable")) and UNSCHEDULABLE in taints)
    return Node(leaving=leaving, since=min(times) if times else None)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def bind(devices: Devices, pods: Iterable[Pod]) -> Devices:
    """Bind what can be bound, and forget devices of pods whose object is gone."""
    uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
    bound = {device: uid for device, uid in devices.bound.items() if uid in uids.values()}
    ready = {device: uids[place] for device, place in devices.given.items() if place in uids}
    given = {device: place for device, place in devices.given.items() if device not in ready}
    return Devices(given=given, bound={**bound, **ready})


def listed(devices: Devices, answer: Mapping[str, tuple[str, str]], pods: Iterable[Pod]) -> Devices:
    """The kubelet's answer. A device that it no longer names stays bound: its pod ended, its object is still there."""
    known = list(pods)
    place = {pod.uid: (pod.namespace, pod.name) for pod in known}
    same = {device for device, uid in devices.bound.items() if answer.get(device) == place.get(uid, ())}
    bound = {device: uid for device, uid in devices.bound.items() if device in same or device not in answer}
    given = {device: found for device, found in answer.items() if device not in same}
    return bind(Devices(given=given, bound=bound), known)


def allocated(devices: Devices, device: str) -> Devices:
    """The kubelet is giving the device to a new pod: whoever had it has it no more."""
    return Devices(
        given={each: place for each, place in devices.given.items() if each != device},
        bound={each: uid for each, uid in devices.bound.items() if each != device},
    )


def directory(
    devices: Devices, pods: Iterable[Pod], slots: Mapping[str, SlotObject], left_since: float | None = None
) -> Directory:
    """All callers, and every slot that has a pod here. A pod of a former slot of the same name is nobody.

    `left_since`: Unix time since when the node is being left, None while it stays.
    """
    mine = {pod.uid: pod for pod in pods if pod.slot not in slots or slots[pod.slot].uid == pod.slot_uid}
    callers = {
        device: Caller(
            device=device,
            namespace=mine[uid].namespace,
            pod=mine[uid].name,
            uid=uid,
            slot=mine[uid].slot,
            component="engine" if mine[uid].component == names.COMPONENT_ENGINE else "slot",
            revision=mine[uid].revision,
        )
        for device, uid in devices.bound.items()
        if uid in mine
    }
    here = {pod.slot for pod in mine.values()}
    stay = {pod.slot for pod in mine.values() if pod.component == names.COMPONENT_SLOT and not pod.going}
    known = {name: _here(slots[name], left_since, name in stay) for name in sorted(here) if name in slots}
    return Directory(callers=callers, slots=known)


def _here(slot: SlotObject, left_since: float | None, pod_stays: bool) -> SlotSpec:
    leaves_by = None if left_since is None else left_since + slot.replacement_timeout
    return replace(slot.spec, leaves_by=leaves_by, pod_stays=pod_stays)


def recalled(remembered: Directory, answer: Mapping[str, tuple[str, str]]) -> Directory:
    """What was remembered before the agent's restart, as far as the kubelet still says the same."""
    callers = {
        device: caller
        for device, caller in remembered.callers.items()
        if answer.get(device) == (caller.namespace, caller.pod)
    }
    return replace(remembered, callers=callers)
