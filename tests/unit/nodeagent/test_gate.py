"""The gate's arithmetic: what is held, what is promised, what may give way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.slot_mind import A, B, C, spec

from ling_nodeagent import events
from ling_nodeagent.facts import Launcher, Role, SetState, Slot, Wanted, WeightSet
from ling_nodeagent.gate import committed, named_sets, removable, to_drop


def launcher(
    pod: str, sets: tuple[Wanted, ...], *, role: Role = Role.GATED, plan: int = 10, stream: int = 1
) -> Launcher:
    return Launcher(uid=pod, pod=pod, stream=stream, weights=sets, role=role, plan={"kv": plan})


def held(what: Wanted, state: SetState = SetState.SEALED, **fields: object) -> WeightSet:
    return WeightSet(set=what.set, kind="memfd", nbytes=what.nbytes, state=state, **fields)  # type: ignore[arg-type]


def slot(*things: Launcher | WeightSet, capacity: int = 250) -> Slot:
    out = Slot(name="ns/demo-0", since=0, spec=spec(capacity=capacity))
    for each in things:
        out = out.put(each) if isinstance(each, Launcher) else out.put_set(each)
    return out


ACTIVE_A = launcher("one", (A,), role=Role.ACTIVE)


AGAIN_A = replace(launcher("one", (A,), role=Role.STARTING), uid="one made again")


@pytest.mark.parametrize(
    ("facts", "extra", "weights", "plans"),
    [
        (slot(), None, 0, 0),
        (slot(held(A)), None, 100, 0),
        (slot(launcher("one", (A,))), None, 0, 0),
        (slot(ACTIVE_A), None, 100, 10),
        (slot(ACTIVE_A, held(A)), None, 100, 10),
        (slot(ACTIVE_A, held(A)), launcher("two", (A,)), 100, 20),
        (slot(ACTIVE_A, held(A)), launcher("two", (B,)), 200, 20),
        (slot(ACTIVE_A, held(A), held(C, SetState.DROPPING)), None, 200, 10),
        (slot(ACTIVE_A, AGAIN_A, held(A)), None, 100, 20),
    ],
    ids=[
        "nothing",
        "held only",
        "gated",
        "promised",
        "held and promised",
        "shares",
        "brings",
        "dropping counts",
        "one pod name twice",
    ],
)
def test_the_sum(facts: Slot, extra: Launcher | None, weights: int, plans: int) -> None:
    room = committed(facts, extra)
    assert (room.weights, room.plans) == (weights, plans)


def test_two_gib_stay_free_beside_device_memory() -> None:
    assert committed(slot(replace(held(A), kind="cuda"))).reserve == 2 << 30


def on_gpus(gib: int, *weights: Wanted) -> Launcher:
    return replace(launcher("one", weights, plan=10 << 30), device_bytes=gib << 30)


def test_the_capacity_of_a_slot_on_gpus_is_their_memory() -> None:
    wanted = replace(A, nbytes=60 << 30)
    assert not committed(slot(capacity=0)).capacity, "nobody has told"
    for gib, fits in ((80, True), (71, False)):
        room = committed(slot(capacity=0), on_gpus(gib, wanted))
        assert (room.capacity, room.reserve, room.fits) == (gib << 30, 2 << 30, fits)


def test_a_second_engine_on_the_same_gpus_takes_its_plan_only() -> None:
    wanted = replace(A, nbytes=60 << 30)
    first = replace(on_gpus(80, wanted), role=Role.ACTIVE)
    second = replace(on_gpus(80, wanted), uid="two", pod="two")
    assert committed(slot(first, capacity=0), second).needed == (60 + 10 + 10 + 2) << 30


def test_each_rank_has_its_own_reserve() -> None:
    ranks = [replace(A, set=f"{'a' * 64}:{rank}", rank=rank) for rank in range(4)]
    assert committed(slot(capacity=0), on_gpus(4 * 80, *ranks)).reserve == 8 << 30


def test_the_sentence_names_the_sum() -> None:
    sentence = committed(slot(ACTIVE_A, held(A), capacity=150), launcher("two", (B,), plan=30)).sentence
    assert "two 30 bytes" in sentence
    assert "target/0" in sentence
    assert sentence.endswith("which is 90 bytes more than the capacity of 150 bytes")


@pytest.mark.parametrize(
    ("facts", "sets"),
    [
        (slot(held(B)), [B]),
        (slot(held(B, attached=frozenset({"s9"}))), []),
        (slot(held(B, SetState.FILLING)), []),
        (slot(held(A)), []),
        (slot(launcher("two", (B,), role=Role.STARTING), held(B)), []),
        (slot(launcher("two", (B,)), held(B), held(C)), [C, B]),
    ],
    ids=["unused", "attached", "being filled", "its own", "another's promise", "unnamed first"],
)
def test_what_may_give_way(facts: Slot, sets: list[Wanted]) -> None:
    assert [each.set for each in removable(facts, launcher("one", (A,)), 0)] == [each.set for each in sets]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (slot(held(B), capacity=250), ()),
        (slot(held(B), capacity=150), (B.set,)),
        (slot(held(B, SetState.DROPPING), capacity=150), ()),
        (slot(held(B, attached=frozenset({"s9"})), capacity=150), None),
        (slot(held(B), held(C), capacity=150), (B.set, C.set)),
        (slot(capacity=100), None),
    ],
    ids=["fits", "one", "on its way", "in use", "two", "never"],
)
def test_the_fewest_sets_to_drop(facts: Slot, names: tuple[str, ...] | None) -> None:
    found = to_drop(facts, launcher("one", (A,)), 0)
    assert (found if found is None else set(found)) == (names if names is None else set(names))


def test_a_launcher_names_its_sets_a_while_after_its_stream_broke() -> None:
    facts = slot(replace(launcher("one", (A,), stream=0), lost_at=100.0))
    assert named_sets(facts, 109.9) == {A.set}
    assert named_sets(facts, 110.0) == set()


def test_no_event_is_without_its_reducer() -> None:
    from typing import get_args

    from ling_nodeagent.decide import REDUCERS

    assert set(REDUCERS) == set(get_args(events.Event))
