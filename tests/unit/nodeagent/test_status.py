"""LingSlot.status and metrics, from the facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.slot_mind import A, Mind

from ling_api.identity import Identity
from ling_nodeagent import decisions as do
from ling_nodeagent import events
from ling_nodeagent.facts import Performance, Phase, Wanted
from ling_nodeagent.metrics import AgentCollector, Counters, Snapshot
from ling_nodeagent.status import build_status


def serving() -> tuple[Mind, int]:
    mind = Mind()
    mind.keeper()
    mind.engine("one", plan=10)
    return mind, mind.serve("one", "s1")


def status(mind: Mind, previous: Any = None, now: float = 1_800_000_000.0) -> dict[str, Any]:
    return build_status(mind.slot, node="node-1", previous=previous, now=now)


def condition(of: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(each for each in of["conditions"] if each["type"] == kind)


def test_a_serving_slot() -> None:
    mind, _ = serving()
    mind.says("one", "s1", Phase.ACCEPTING, phases={"warm": 812.34})
    seen = status(mind)
    assert seen["node"] == "node-1"
    assert seen["active"] == {"pod": "one", "uid": "uid-one", "term": 1}
    assert seen["capacity"] == {"total": 1000, "weights": 100, "plans": 10}
    assert seen["listener"]
    (engine,) = seen["engines"]
    assert (engine["role"], engine["phase"], engine["planBytes"]) == ("active", "accepting", 10)
    assert engine["phases"]["warm"] == 812.3
    (weights,) = seen["weightSets"]
    assert (weights["set"], weights["state"], weights["holders"]) == (A.set, "sealed", 3)
    assert {each["type"]: each["status"] for each in seen["conditions"]} == {
        "WeightsHeld": "True",
        "Serving": "True",
        "Recovering": "False",
        "Degraded": "False",
    }


def test_how_far_a_fill_is_stands_in_the_message_of_the_slot() -> None:
    mind = Mind()
    mind.keeper()
    mind.engine("one", plan=10)
    mind.fork("one", "s1")
    mind.attach("one", "s1")
    mind.says("one", "s1", Phase.FILLING, progress=0.454)
    seen = status(mind)
    assert seen["message"] == "45% filled"
    assert condition(seen, "WeightsHeld")["message"] == "45% filled"


def on(kind: str, capability: str) -> Wanted:
    identity = Identity.of("target", {"device": {"type": kind, "capability": capability}})
    return replace(A, identity=identity.to_bytes())


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        pytest.param(on("cuda", "9.0"), "9.0", id="a GPU"),
        pytest.param(on("cpu", "x86_64"), "", id="no GPU"),
        pytest.param(on("cuda", "9" * 17), "", id="more than the status takes"),
        pytest.param(A, "", id="an identity that does not say"),
    ],
)
def test_the_gpus_kind_is_told_as_the_identities_have_it(weights: Wanted, said: str) -> None:
    mind = Mind()
    mind.engine("one", sets=(weights,))
    assert status(mind)["computeCapability"] == said


def test_nobody_active_still_tells_the_term() -> None:
    mind, rank = serving()
    mind.die(rank)
    assert status(mind)["active"] == {"pod": "", "uid": "", "term": 1}


def test_a_starting_engine_is_shown_as_gated_with_its_phase() -> None:
    mind = Mind()
    mind.engine("one")
    mind.fork("one", "s1")
    (engine,) = status(mind)["engines"]
    assert (engine["role"], engine["phase"]) == ("gated", "started")


def test_the_accept_length_is_told_by_engines_that_verify_drafts() -> None:
    mind, _ = serving()
    mind.post(events.Performed(stream=mind["one"].stream, performance=Performance(requests=1, tpot_ms=2.0)))
    assert "acceptLength" not in status(mind)["engines"][0]
    mind.post(events.Performed(stream=mind["one"].stream, performance=Performance(requests=2, accept_length=4.4567)))
    assert status(mind)["engines"][0]["acceptLength"] == 4.457
    assert not {"samples", "windowSeconds", "draftTokens"} & status(mind)["engines"][0].keys(), "an older engine"


def test_what_the_means_are_of_and_how_many_rows_are_verified_is_told() -> None:
    mind, _ = serving()
    seen = Performance(requests=300, samples=256, window_seconds=12.34567, draft_tokens=9)
    mind.post(events.Performed(stream=mind["one"].stream, performance=seen))
    (engine,) = status(mind)["engines"]
    assert (engine["samples"], engine["windowSeconds"], engine["draftTokens"]) == (256, 12.346, 9)


def test_transition_times_change_only_with_the_status() -> None:
    mind, rank = serving()
    first = status(mind, now=1_800_000_000.0)
    second = status(mind, first, now=1_800_000_100.0)
    assert condition(second, "Serving") == condition(first, "Serving")
    mind.die(rank)
    third = status(mind, second, now=1_800_000_200.0)
    assert condition(third, "Serving")["lastTransitionTime"] == "2027-01-15T08:03:20Z"
    assert condition(third, "WeightsHeld") == condition(first, "WeightsHeld")


def test_a_crash_loop_is_the_message() -> None:
    mind = Mind()
    mind.engine("one")
    for number in range(5):
        mind.die(mind.fork("one", f"s{number}"))
        mind.later(30)
    assert status(mind)["message"].startswith("EngineCrashLoop: one: 5 servers in a row died")


def scraped(counters: Counters, *minds: Mind) -> str:
    registry = CollectorRegistry()
    slots = {f"ns/slot-{number}": mind.slot for number, mind in enumerate(minds)}
    snapshot = Snapshot(slots=slots, counters=counters, open_fds=3, streams=1, connections=2)
    registry.register(AgentCollector(lambda: snapshot))
    return generate_latest(registry).decode()


def test_metrics_tell_slots_and_counters() -> None:
    counters = Counters()
    counters.answered("s1", do.Granted(sets=(A.set,)), 10.0)
    counters.mapped("s1", A.set, 10.0015)
    counters.mapped("s1", A.set, 99.0)  # said again to a new agent: no second attach
    text = scraped(counters, serving()[0])
    for line in (
        "ling_agent_slots 1.0",
        "ling_agent_open_fds 3.0",
        'ling_agent_weight_sets{slot="ns/slot-0",state="sealed"} 1.0',
        'ling_agent_weight_bytes{slot="ns/slot-0"} 100.0',
        'ling_agent_attachments{slot="ns/slot-0"} 1.0',
        'ling_agent_serving{slot="ns/slot-0"} 1.0',
        'ling_agent_attach_answers_total{answer="granted"} 1.0',
        'ling_agent_attach_seconds_bucket{le="0.001"} 0.0',
        'ling_agent_attach_seconds_bucket{le="0.002"} 1.0',
        "ling_agent_attach_seconds_count 1.0",
    ):
        assert line in text.splitlines()


def test_a_slot_that_is_gone_leaves_no_series() -> None:
    assert "slot=" not in scraped(Counters())


def degraded(mind: Mind) -> tuple[str, str]:
    seen = build_status(mind.slot, node="n", previous=None, now=1e9, monotonic=mind.now)
    found = condition(seen, "Degraded")
    return found["status"], found["reason"]


def test_a_missing_standby_degrades() -> None:
    mind, _ = serving()
    mind.spec(standbys=1)
    assert degraded(mind) == ("True", "StandbyMissing")
    mind.engine("two", plan=10)
    mind.start("two", "s2")
    assert degraded(mind) == ("False", "NothingWrong")


def test_a_hang_is_told_for_a_minute() -> None:
    mind, rank = serving()
    silent = Performance(in_flight=1, patience_ms=5000.0, requests=1)
    mind.post(events.Performed(stream=mind["one"].stream, performance=silent))
    mind.later(5)
    assert degraded(mind) == ("True", "EngineHung")
    mind.die(rank)
    mind.serve("one", "s2")
    mind.later(50)
    assert degraded(mind) == ("True", "EngineHung")
    mind.later(10)
    assert degraded(mind) == ("False", "NothingWrong")
