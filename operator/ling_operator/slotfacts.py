"""What is true of one slot: its LingSlot and its pods put together, and the questions that a plan asks about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_api.slotstatus import EngineStatus
    from ling_operator.views import Observed, PodView, SlotView


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One slot that nobody has deleted. `pods` are those whose owner is this very LingSlot."""

    slot: SlotView
    pods: tuple[PodView, ...]

    @property
    def name(self) -> str:
        return self.slot.name

    @property
    def slot_pod(self) -> PodView | None:
        """The slot pod in whatever state; there is at most one, its name is fixed."""
        return next((one for one in self.pods if one.component == names.COMPONENT_SLOT), None)

    @property
    def engines(self) -> tuple[PodView, ...]:
        """Every engine pod, oldest first."""
        found = (one for one in self.pods if one.component == names.COMPONENT_ENGINE)
        return tuple(sorted(found, key=lambda pod: (pod.created, pod.number, pod.name)))

    @property
    def live_engines(self) -> tuple[PodView, ...]:
        return tuple(one for one in self.engines if one.live)

    def reported(self, pod: PodView) -> EngineStatus | None:
        """What the agent says of this very pod."""
        return next((one for one in self.slot.status.engines if (one.pod, one.uid) == (pod.name, pod.uid)), None)

    @property
    def active(self) -> PodView | None:
        """The pod that accepts requests, as far as the agent has said."""
        said = self.slot.status.active
        if said is None:
            return None
        return next((one for one in self.engines if (one.name, one.uid) == (said.pod, said.uid)), None)

    @property
    def serving(self) -> bool:
        return self.slot.status.is_true(names.SERVING)

    @property
    def reachable(self) -> bool:
        """It serves, and clients of the Service come to it."""
        return self.serving and self.slot_pod is not None and self.slot_pod.serving

    @property
    def held(self) -> bool:
        """Requests are answered, or wait for a successor that is expected: what the slot pod's readiness says."""
        pod = self.slot_pod
        return self.serving or (pod is not None and pod.live and pod.ready)

    @property
    def lost(self) -> bool:
        """It once lived on a node, and neither its slot pod nor an engine is left: nothing of it can come back."""
        return bool(self.slot.status.node) and not any(not one.terminal for one in self.pods)

    def updated(self, revision: str) -> bool:
        """It serves this revision."""
        return self.active is not None and self.active.live and self.active.revision == revision

    def old_engines(self, revision: str) -> bool:
        """An engine of another revision is left."""
        return any(one.revision != revision for one in self.engines if not one.terminal)

    def settled(self, revision: str) -> bool:
        """It serves this revision, and no engine of another one is left."""
        return self.slot.spec.revision == revision and self.updated(revision) and not self.old_engines(revision)

    @property
    def placed(self) -> bool:
        """Its slot pod has a node, and no engine waits for room."""
        pod = self.slot_pod
        return pod is not None and bool(pod.node) and not any(one.unschedulable for one in self.live_engines)

    def previous(self, revision: str) -> PodView | None:
        """The engine to go on with when `revision` is given up: the active one, else the one that served last."""
        others = [one for one in self.live_engines if one.revision != revision]
        active = self.active
        if active is not None and active in others:
            return active
        served = [one for one in others if (said := self.reported(one)) and (said.role == "draining" or said.requests)]
        return next(iter(served or others), None)

    def message(self) -> str:
        """What the slot waits for, in one line; "" when it waits for nothing."""
        pod = self.slot_pod
        if pod is None:
            return "the slot pod is being made"
        troubles = [one.trouble for one in (pod, *self.live_engines) if one.trouble]
        if troubles:
            return troubles[0]
        if not pod.node:
            return "the slot pod waits for a node"
        return self.slot.status.message


def facts_of(observed: Observed) -> tuple[SlotFacts, ...]:
    """The slots that are ours and that nobody has deleted, by number."""
    slots: Sequence[SlotView] = sorted(observed.slots, key=lambda one: one.number)
    return tuple(
        SlotFacts(slot=slot, pods=tuple(one for one in observed.pods if one.slot_uid == slot.uid))
        for slot in slots
        if slot.owned and not slot.deleting
    )
