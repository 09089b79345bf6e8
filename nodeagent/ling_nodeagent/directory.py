"""Who may be calling, and what the slots are meant to be: the values that the node's edges hand to the agent.

The kubelet (or a static file) says which device folder belongs to which pod; the API server (or the same file) says
what each slot is. Both arrive as whole maps, never as differences: what is missing from a map is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Component = Literal["slot", "engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The pod to which the kubelet gave a device; its folder is its identity."""

    device: str  # "d000" .. "d255"
    namespace: str
    pod: str
    uid: str
    slot: str  # "namespace/name" of the LingSlot that controls the pod
    component: Component
    revision: str  # of an engine pod; "" for a slot pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The operator's wish: that this pod serves, said when the slot's term was `term`."""

    pod: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """What a LingSlot asks for."""

    name: str  # "namespace/name"
    deployment: str
    revision: str  # the wanted one
    revisions: frozenset[str]  # every revision whose engines may run here, the wanted one included
    capacity: int  # bytes for weight sets and memory plans together
    grace_seconds: float
    hold_seconds: float
    wish: Wish | None = None
    leaving: bool = False  # the LingSlot has a deletion timestamp
    standbys: int = 0  # engines to be kept warm beside the active one
    lame_duck_seconds: float = 0.0  # how long the last engine of a slot that is taken away goes on accepting
    retiring: bool = False  # the operator takes it away: its last engine is a lame duck
    leaves_by: float | None = None  # its node is being left: from then on (Unix time) nothing holds its pods back
    pod_stays: bool = False  # the API server has its slot pod, and nobody deletes that
    generation: int = 0
