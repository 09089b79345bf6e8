"""Which slots there are to be: which stay, which go, how many are missing. Pure; docs/rollout.md has the table.

Whatever goes for another reason than being too many goes only when enough others serve, except where that would never
come true: its node's time is over, it could not serve anyway, or there is no room for the new slot beside the old.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ling_operator.checkpods import can_check
from ling_operator.room import could_hold, needs, waits_for_room
from ling_operator.verdicts import too_few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ling_api.engine import Place
    from ling_api.enginepart import EnginePart
    from ling_api.gpu import Gpu
    from ling_api.v1alpha1 import LingDeploymentSpec, LingSlotSpec
    from ling_operator.slotfacts import SlotFacts
    from ling_operator.views import Observed, SlotView

STARVED_AFTER: Final = 30.0  # seconds without room for any engine, after which a slot is replaced
NO_ROOM_AFTER: Final = 10.0  # seconds without room for a new slot, after which a misfit goes first


class Standing(StrEnum):
    GOOD = "good"
    LEAVING = "leaving"
    DEAD = "dead"
    STARVED = "starved"
    MISFIT = "misfit"
    LOST = "lost"


WHY: Final[Mapping[Standing, str]] = {
    Standing.LEAVING: "its node is being drained, and others serve",
    Standing.DEAD: "its node is dead, and others serve",
    Standing.STARVED: "its engine finds no room, and others serve",
    Standing.MISFIT: "slots as they are wanted serve",
    Standing.LOST: "its pods are lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a good slot is like. `only` is the one revision that it may name; "" lets it be changed in place."""

    memory: int
    gpu: Gpu
    place: Place
    only: str = ""
    revision: str = ""  # what a new slot gets
    part: EnginePart | None = None

    def tried(self, facts: SlotFacts) -> bool:
        """Whether the revision has passed its check in this slot, as far as one can be made there."""
        if self.part is None or not can_check(facts.slot, self.part):
            return True
        return facts.passed(self.revision)

    def shapes(self, spec: LingSlotSpec) -> bool:
        """Whether a slot has what cannot be changed in place."""
        return (spec.capacity, spec.gpu, spec.place) == (self.memory, self.gpu, self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The slots by standing, and what follows from it. `said` is for people, "" when there is nothing to say."""

    standings: Mapping[str, Standing]
    good: tuple[SlotFacts, ...]
    others: tuple[SlotFacts, ...]
    spares: tuple[SlotFacts, ...]
    goes: tuple[tuple[SlotFacts, str], ...]
    missing: int
    missing_spares: int
    said: str
    first: SlotFacts | None = None  # the misfit that goes first, once the revision has passed its check

    @property
    def gone(self) -> frozenset[str]:
        return frozenset(facts.name for facts, _ in self.goes)

    @property
    def promote(self) -> SlotFacts | None:
        """The spare slot that is to serve instead of a new one: one that is filled, if there is one."""
        ready = [one for one in self.spares if one.name not in self.gone and one.placed]
        return min(ready, key=lambda one: (not one.filled, one.slot.number), default=None) if self.missing else None


def fits(facts: SlotFacts, aim: Aim) -> bool:
    spec = facts.slot.spec
    return aim.shapes(spec) and aim.only in ("", spec.revision)


def standing_of(facts: SlotFacts, aim: Aim, now: float) -> Standing:
    """The first of them that is true."""
    waits = facts.engines_wait_since()
    verdicts = {
        Standing.LOST: facts.lost,
        Standing.DEAD: not facts.alive,
        Standing.LEAVING: facts.leaving,
        Standing.MISFIT: not fits(facts, aim),
        Standing.STARVED: bool(waits) and now - waits >= STARVED_AFTER,
    }
    return next((standing for standing, true in verdicts.items() if true), Standing.GOOD)


def _order(facts: SlotFacts) -> tuple[bool, bool, int]:
    """Who goes first: not serving, then without clients that wait, then the newest."""
    return facts.reachable, facts.held, -facts.slot.number


def _surplus(slots: Sequence[SlotFacts], wanted: int, why: str) -> Iterator[tuple[SlotFacts, str]]:
    for facts in sorted(slots, key=_order)[: max(0, len(slots) - wanted)]:
        yield facts, why


def _over(facts: SlotFacts, standing: Standing, spec: LingDeploymentSpec, now: float) -> str:
    """Why a slot goes even though nobody can serve for it, "" if it stays.

    When the time of a node is over, evictions are let through; what serves and is evicted by nobody stays: a node may
    be cordoned only to be looked at.
    """
    timeout = spec.replacement_timeout_seconds
    over = standing is Standing.LEAVING and now - facts.leaving_since >= timeout
    if over and facts.let_go(spec.hold_seconds, now):
        return f"its node is being drained, and no replacement served within {timeout} s"
    if standing is Standing.DEAD and facts.node is not None and not facts.node.exists:
        return "its node is gone"
    if standing is Standing.STARVED and not facts.serving:
        return f"its engine found no room for {STARVED_AFTER:.0f} s"
    return ""


def _ends(observed: Observed, slot: SlotView) -> bool:
    """Whether a slot that is being deleted will be gone soon: on a dead node nobody ends its pods."""
    node = observed.nodes.get(slot.status.node)
    return node is None or node.alive


def _without_room(good: Sequence[SlotFacts], *, engines_too: bool, now: float) -> bool:
    """A new slot has been waiting for room, and for nothing else, long enough."""
    waits = [waits_for_room(one, engines_too=engines_too) for one in good]
    return any(since and now - since >= NO_ROOM_AFTER for since in waits)


def _going(
    spec: LingDeploymentSpec,
    standings: Mapping[str, Standing],
    good: Sequence[SlotFacts],
    others: Sequence[SlotFacts],
    now: float,
) -> Iterator[tuple[SlotFacts, str]]:
    yield from _surplus(good, spec.replicas, f"{spec.replicas} slots are wanted")
    lost = [one for one in others if standings[one.name] is Standing.LOST]
    if len(good) >= spec.replicas:
        yield from ((one, WHY[Standing.LOST]) for one in lost)
    rest = [one for one in others if one not in lost]
    still = max(0, spec.replicas - sum(one.reachable for one in good))
    yield from ((one, WHY[standings[one.name]]) for one, _ in _surplus(rest, still, ""))
    for one in rest:
        why = _over(one, standings[one.name], spec, now)
        if why:
            yield one, why


def _spares_going(
    spec: LingDeploymentSpec, standings: Mapping[str, Standing], spares: Sequence[SlotFacts]
) -> Iterator[tuple[SlotFacts, str]]:
    kept = [one for one in spares if standings[one.name] is Standing.GOOD]
    yield from ((one, f"a spare slot of no use: {standings[one.name]}") for one in spares if one not in kept)
    wanted = spec.spare_slots if spec.replicas else 0
    surplus = sorted(kept, key=lambda one: (one.filled, -one.slot.number))[: max(0, len(kept) - wanted)]
    yield from ((one, f"{wanted} spare slots are wanted") for one in surplus)


def _missing(
    spec: LingDeploymentSpec, standings: Mapping[str, Standing], good: Sequence[SlotFacts], others: Sequence[SlotFacts]
) -> int:
    """Misfits are replaced one at a time; everything else at once."""
    missing = max(0, spec.replicas - len(good))
    misfits = any(standings[one.name] is Standing.MISFIT for one in others)
    if misfits and not all(one.serving for one in good) and len(good) + len(others) >= spec.replicas:
        return 0
    return min(missing, 1) if misfits else missing


def place(observed: Observed, spec: LingDeploymentSpec, facts: Sequence[SlotFacts], aim: Aim, now: float) -> Placement:
    """What is to become of every slot."""
    standings = {one.name: standing_of(one, aim, now) for one in facts}
    serving = [one for one in facts if not one.slot.spec.spare]
    good = [one for one in serving if standings[one.name] is Standing.GOOD]
    others = [one for one in serving if one not in good]
    spares = [one for one in facts if one.slot.spec.spare]
    goes = {one.name: (one, why) for one, why in _going(spec, standings, good, others, now)}
    goes |= {one.name: (one, why) for one, why in _spares_going(spec, standings, spares)}
    said, checking = "", None
    misfits = [one for one in others if standings[one.name] is Standing.MISFIT and one.name not in goes]
    if _without_room(good, engines_too=bool(aim.only), now=now):
        asked = needs(aim.memory, aim.gpu, aim.part)
        few = too_few(aim.gpu, observed.devices) if aim.gpu == spec.part.gpu else None
        helps = [one for one in misfits if not few and (not one.serving or could_hold(one.node, asked))]
        terminating = [one.name for one in observed.slots if one.owned and one.deleting and _ends(observed, one)]
        first = min(helps, key=_order, default=None)
        if terminating:
            said = f"no room for a new slot beside the old: {terminating[0]} is released first"
        elif first is not None:
            said = f"no room for a new slot beside the old: {first.name} is released first"
            if not first.serving or aim.tried(first):
                goes[first.name] = (first, said)
            else:
                said, checking = f"{said}, once revision {aim.revision} has passed its check", first
        elif few is not None:
            said = few[1]
        elif misfits:
            said = (
                f"a new slot is larger than what {misfits[0].slot.status.node} has for pods, so none is released for it"
            )
    kept = [one for one in spares if one.name not in goes]
    return Placement(
        standings=standings,
        good=tuple(good),
        others=tuple(others),
        spares=tuple(kept),
        goes=tuple(goes.values()),
        missing=_missing(spec, standings, good, others),
        missing_spares=max(0, spec.spare_slots - len(kept)) if spec.replicas else 0,
        said=said,
        first=checking,
    )
