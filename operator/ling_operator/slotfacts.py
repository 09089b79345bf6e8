"""What is true of one slot: its LingSlot and its pods put together, and the questions that a plan asks about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api import names
from ling_operator.surroundings import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_api.slotstatus import EngineStatus
    from ling_operator.surroundings import ClaimView, NodeView
    from ling_operator.views import Observed, PodView, SlotView


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One slot that nobody has deleted. `pods` are those whose owner is this very LingSlot."""

    slot: SlotView
    pods: tuple[PodView, ...]
    claim: ClaimView | None = None
    node: NodeView | None = None
    agent: bool | None = None  # whether its node's agent is Ready; None while it has no node
    refused: str = ""  # what the API server would not do for it, in words
    leaving_since: float = 0.0  # when its node began to leave: the taint's word, else when we first saw it

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
        found = (one for one in self.pods if one.component == names.COMPONENT_ENGINE and not one.fill)
        return tuple(sorted(found, key=lambda pod: (pod.created, pod.number, pod.name)))

    @property
    def fills(self) -> tuple[PodView, ...]:
        """The pods that read weights ahead, running or ended."""
        return tuple(one for one in self.pods if one.fill)

    @property
    def checks(self) -> tuple[PodView, ...]:
        """The pods that try a revision's image and flags, running or ended."""
        return tuple(one for one in self.pods if one.component == names.COMPONENT_CHECK)

    def passed(self, revision: str) -> bool:
        """An engine of the revision would start: it has been tried, or runs here."""
        return self.updated(revision) or any(
            one.phase == "Succeeded" and one.revision == revision for one in self.checks
        )

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
        """Somebody answers. What the agent said last does not count when its node is dead, nor against the kubelet."""
        return self.slot.status.is_true(names.SERVING) and self.alive and not self.silent

    @property
    def silent(self) -> bool:
        """The agent said that it serves and is away, and the engine that it named is not Ready, or is gone.

        On a node that is left not being Ready says nothing: at the deadline the agent holds engines back that serve.
        """
        active = self.active
        answers = active is not None and active.live and (active.ready or self.leaving)
        return self.slot.status.is_true(names.SERVING) and self.agent is False and not answers

    @property
    def silent_since(self) -> float | None:
        """Since when it is silent; None while it is not, or before the agent's absence is written down.

        Nobody becomes active without an agent, so its absence counts where no pod tells when the engine ended.
        """
        away, active = self.slot.status.condition(names.AGENT_LOST), self.active
        if not self.silent or away is None or not away.true:
            return None
        ended = active.ready_changed if active is not None and not active.ready else 0.0
        return max(seconds(away.last_transition_time), ended)

    @property
    def alive(self) -> bool:
        """Its node is Ready, or it has none yet."""
        return self.node is None or self.node.alive

    @property
    def leaving(self) -> bool:
        """Its node is about to go."""
        return self.node is not None and bool(self.node.leaving)

    @property
    def unserved_since(self) -> float | None:
        """When it stopped serving; None while it serves or before anybody said so."""
        condition = self.slot.status.condition(names.SERVING)
        if condition is None:
            return None
        return self.silent_since if condition.true else seconds(condition.last_transition_time)

    def let_go(self, hold: float, now: float) -> bool:
        """Nothing is lost with it: nobody has answered for `hold` seconds, or ever, or its slot pod was evicted."""
        pod, since = self.slot_pod, self.unserved_since
        if pod is None or not pod.live:
            return True
        return not self.serving and (since is None or now - since >= hold)

    @property
    def recovering(self) -> bool:
        """A new agent does not know the roles of all engines yet."""
        return self.slot.status.is_true(names.RECOVERING)

    @property
    def filled(self) -> bool:
        """A spare slot whose weights are all held, of the revision that it names."""
        done = any(one.phase == "Succeeded" and one.revision == self.slot.spec.revision for one in self.fills)
        return done and self.slot.status.is_true(names.WEIGHTS_HELD)

    def engines_wait_since(self) -> float:
        """Since when, its slot pod in place, no engine of its revision has found room; 0 when one has."""
        pod = self.slot_pod
        engines = [one.waits_since for one in self.live_engines if one.revision == self.slot.spec.revision]
        placed = pod is not None and pod.live and bool(pod.node)
        return max(engines) if placed and engines and all(engines) else 0.0

    def waits_since(self, *, engines_too: bool) -> float:
        """Since when it waits for a node, 0 when it has one; `engines_too`: or for room for its engine."""
        pod = self.slot_pod
        if pod is not None:
            return pod.waits_since or (self.engines_wait_since() if engines_too else 0.0)
        return max((one.waits_since for one in self.live_engines), default=0.0)

    @property
    def reachable(self) -> bool:
        """It serves, and clients of the Service come to it."""
        return self.serving and self.slot_pod is not None and self.slot_pod.serving

    @property
    def held(self) -> bool:
        """Requests are answered, or wait for a successor that is expected: what the slot pod's readiness says."""
        pod = self.slot_pod
        return self.serving or (pod is not None and pod.live and pod.ready and self.alive and not self.silent)

    @property
    def lost(self) -> bool:
        """It once lived on a node, and neither its slot pod nor an engine is left: nothing of it can come back."""
        lasting = [one for one in self.pods if not one.terminal and one not in self.checks]
        return bool(self.slot.status.node) and not lasting

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
        if self.refused:
            return self.refused
        if pod is None:
            return "the slot pod is being made"
        troubles = [one.trouble for one in (pod, *self.live_engines) if one.trouble]
        if troubles:
            return troubles[0]
        if not pod.node:
            return "the slot pod waits for a node"
        return self.slot.status.message


def node_name(slot: SlotView, pods: Sequence[PodView]) -> str:
    """Where the slot is: its slot pod's node, else an engine's, else where the agent saw it last."""
    ordered = sorted(pods, key=lambda one: one.component != names.COMPONENT_SLOT)
    return next((one.node for one in ordered if one.node and not one.terminal), slot.status.node)


def facts_of(observed: Observed) -> tuple[SlotFacts, ...]:
    """The slots that are ours and that nobody has deleted, by number."""
    slots: Sequence[SlotView] = sorted(observed.slots, key=lambda one: one.number)
    return tuple(_facts(observed, slot) for slot in slots if slot.owned and not slot.deleting)


def _facts(observed: Observed, slot: SlotView) -> SlotFacts:
    pods = tuple(one for one in observed.pods if one.slot_uid == slot.uid)
    node = observed.nodes.get(node_name(slot, pods))
    seen_at = slot.status.node or next((one.node for one in pods if one.component == names.COMPONENT_SLOT), "")
    since = 0.0
    if node is not None and node.leaving:
        since = node.since or observed.previous.leaving.get(slot.name, 0.0) or observed.now
    return SlotFacts(
        slot=slot,
        pods=pods,
        claim=next((one for one in observed.claims if one.slot_uid == slot.uid), None),
        node=node,
        agent=seen_at in observed.agents if seen_at else None,
        refused=next((one.sentence for one in observed.previous.refused if one.slot == slot.name), ""),
        leaving_since=since,
    )
