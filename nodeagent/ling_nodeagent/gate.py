"""The gate: a launcher may start a server only when all weight sets and plans together fit the slot's capacity.

A set counts from the moment that a launcher which needs it is let through until the last copy is closed; a plan from
`go` until the last process of the server is dead. Counting promises as well as facts keeps two launchers that are let
through at once from sharing the same room.

A slot whose capacity is 0 has its weights in GPU memory: the capacity is then what the engines tell of their GPUs.
Plans and sets are sums over all ranks, and so is that memory: ranks are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.memoryplan import MemoryPlan, Room, room

from .facts import Launcher, SetState, Slot, WeightSet

if TYPE_CHECKING:
    from collections.abc import Iterable

RESERVE = {"memfd": 0, "cuda": 2 << 30}  # bytes of each rank beside weights and plans, by the kind of memory


def committed(
    slot: Slot, extra: Launcher | None = None, *, sets_without: Iterable[str] = (), plans_without: Iterable[str] = ()
) -> Room:
    """The sum of what is held and promised, with `extra` let through too, without some sets or some launchers."""
    gone, stopped = set(sets_without), set(plans_without)
    through = [each for each in slot.launchers.values() if each.through and each.uid not in stopped]
    if extra is not None:
        through = [each for each in through if each.uid != extra.uid] + [extra]
    sizes: dict[str, int] = {}
    for each in through:
        for wanted in each.weights:
            sizes[wanted.set] = max(sizes.get(wanted.set, 0), wanted.nbytes)
    for held in slot.sets.values():
        if held.set not in gone:
            sizes[held.set] = max(sizes.get(held.set, 0), held.nbytes)
    plans: dict[str, MemoryPlan] = {}
    for each in through:  # a pod that was made again under its name may meet its former process: both count
        plans[each.pod if each.pod not in plans else f"{each.pod} ({each.uid})"] = MemoryPlan(each.plan)
    present = list(slot.launchers.values()) + ([extra] if extra is not None else [])
    device = max((each.device_bytes for each in present), default=0)
    capacity = slot.spec.capacity if slot.spec else 0
    return room(capacity or device, _named(slot, sizes), plans, _reserve(slot, through, on_device=not capacity))


def _reserve(slot: Slot, through: Iterable[Launcher], *, on_device: bool) -> int:
    kinds = {held.kind for held in slot.sets.values()} | ({"cuda"} if on_device else set())
    ranks = {held.rank for held in slot.sets.values()} | {wanted.rank for each in through for wanted in each.weights}
    return max((RESERVE.get(kind, 0) for kind in kinds), default=0) * max(len(ranks), 1)


def _named(slot: Slot, sizes: dict[str, int]) -> dict[str, int]:
    """The sets by role, rank and the digest's first digits, as a person knows them."""
    roles = {wanted.set: (wanted.role, wanted.rank) for each in slot.launchers.values() for wanted in each.weights}
    named: dict[str, int] = {}
    for name, nbytes in sizes.items():
        held = slot.sets.get(name)
        role, rank = roles.get(name) or ((held.role, held.rank) if held else ("", 0))
        named[f"{role or 'set'}/{rank} {name[:8]}"] = nbytes
    return named


def removable(slot: Slot, launcher: Launcher, now: float) -> list[WeightSet]:
    """Sealed sets that could give way to `launcher`: nobody is attached and nobody let through needs them.

    Those that no connected launcher names come first: dropping them costs no rollback a refill.
    """
    if slot.strangers:
        return []
    through = [each for each in slot.launchers.values() if each.through]
    needed = {wanted.set for each in (*through, launcher) for wanted in each.weights}
    named = named_sets(slot, now)
    free = [
        held
        for held in slot.sets.values()
        if held.state is SetState.SEALED and not held.attached and held.set not in needed
    ]
    return sorted(free, key=lambda held: (held.set in named, -held.nbytes, held.set))


def named_sets(slot: Slot, now: float) -> frozenset[str]:
    """The sets that some connected launcher's hello names; one that has just lost its stream is about to be back."""
    return frozenset(
        wanted.set
        for each in slot.launchers.values()
        if each.stream or each.server is not None or now < each.lost_at + slot.recover_max
        for wanted in each.weights
    )


def to_drop(slot: Slot, launcher: Launcher, now: float, *, plans_without: Iterable[str] = ()) -> tuple[str, ...] | None:
    """The fewest removable sets, in order, without which `launcher` fits; None when it would not fit even so.

    Sets that are being dropped count as gone: their room comes without doing more.
    """
    going = [held.set for held in slot.sets.values() if held.state is SetState.DROPPING]
    free = removable(slot, launcher, now)
    for count in range(len(free) + 1):
        without = [held.set for held in free[:count]]
        if committed(slot, launcher, sets_without=going + without, plans_without=plans_without).fits:
            return tuple(without)
    return None
