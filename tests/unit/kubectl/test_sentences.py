"""`kubectl ling explain`: each thing that can be missing, and the sentence that names it."""

from __future__ import annotations

import pytest
from tests.support.ling_objects import (
    REVISION,
    condition,
    deployment,
    event,
    pod,
    seen,
    slot,
    unschedulable,
    waiting,
)  # fmt: skip

from ling_kubectl.sentences import explain

NOT_READY = condition("Ready", "False", "NotServing", "no slot serves yet")
READY = condition("Ready", "True", "Serving", "1 of 1 slots serve")
SLOT_POD = pod("slot", "tiny-0")
ENGINE = pod("engine", "tiny-0-e")
FILLING = {"set": "x:0", "role": "target", "state": "filling", "progress": 0.43, "bytes": 60 << 30}


def engine(**said: object) -> dict[str, object]:
    return {"pod": "tiny-0-e", "revision": REVISION, "role": "gated", "phase": "gated", **said}


CASES = {
    "the operator never came": ([deployment()], "tiny was not looked at by the operator yet"),
    "all is well": ([deployment(READY)], "tiny answers requests (1 of 1 slots serve), for 30 s."),
    "nobody answers": ([deployment(NOT_READY)], "tiny answers nobody, for 30 s: no slot serves yet."),
    "scaled to zero": (
        [deployment(condition("Ready", "False", "ScaledToZero"))],
        "tiny is scaled to zero, for 30 s: kubectl scale ld/tiny --replicas=1"),
    "an edit not seen": ([deployment(READY, observedGeneration=2)], "The operator has not seen the last edit yet"),
    "a spec that is not understood": (
        [deployment(READY, condition("Progressing", "False", "InvalidSpec", "spec.gpu: what is that"))],
        "Its spec is not understood: spec.gpu: what is that."),
    "given up": (
        [deployment(READY, condition("Progressing", "False", "ProgressDeadlineExceeded", "no progress for 900 s"))],
        "The last change was given up (ProgressDeadlineExceeded): no progress for 900 s."),
    "on its way": (
        [deployment(READY, condition("UpdateInProgress", "True", "SlotsWait", "tiny-0: not yet"))],
        "A change is on its way: tiny-0: not yet."),
    "paused": ([deployment(READY, spec={"rollout": {"paused": True}})], "Its rollout is paused"),
    "no slot pod": ([deployment(NOT_READY), slot()], "tiny-0: its slot pod is not made yet."),
    "no memory": (
        [deployment(NOT_READY), slot(), unschedulable("slot", "tiny-0", "0/2 nodes: 2 Insufficient memory.")],
        "tiny-0: no node takes slot pod tiny-0: 0/2 nodes: 2 Insufficient memory. (lower weightCache.memory"),
    "no agent anywhere": (
        [deployment(NOT_READY), slot(), unschedulable("slot", "tiny-0", "2 Insufficient ling.dev/node-agent.")],
        "no node agent offers its device there"),
    "no GPU": (
        [deployment(NOT_READY), slot(), unschedulable("slot", "tiny-0", "2 cannot allocate all claims")],
        "no node has that many free GPUs"),
    "the agent is lost": (
        [deployment(NOT_READY), slot(condition("AgentLost", "True")), SLOT_POD],
        "tiny-0: no agent on node n1 is ready"),
    "the agent recovers": (
        [deployment(NOT_READY), slot(condition("Recovering", "True")), SLOT_POD], "its agent has just started"),
    "no engine pod": ([deployment(NOT_READY), slot(), SLOT_POD], "tiny-0: it has no engine pod yet."),
    "no image": (
        [deployment(NOT_READY), slot(), SLOT_POD, waiting("tiny-0-e", "ErrImagePull", "not found")],
        "tiny-0: the image of engine pod tiny-0-e cannot be had (ErrImagePull): not found."),
    "a wrong flag": (
        [deployment(NOT_READY), slot(), SLOT_POD,
         waiting("tiny-0-e", "CrashLoopBackOff", "back-off", 2)],
        "tiny-0-e is in CrashLoopBackOff; it ended with 2 (its input is wrong: an argument, the checkpoint or the"),
    "its last words": (
        [deployment(NOT_READY), slot(), SLOT_POD, waiting("tiny-0-e", "CrashLoopBackOff", "", 2, "--tp: too many")],
        "configuration): --tp: too many."),
    "it was killed": (
        [deployment(NOT_READY), slot(), SLOT_POD, waiting("tiny-0-e", "CrashLoopBackOff", "", 137)],
        "it ended with 137 (it was killed, mostly for want of memory)"),
    "evicted": (
        [deployment(NOT_READY), slot(), SLOT_POD, pod("engine", "tiny-0-e", phase="Failed", reason="Evicted")],
        "engine pod tiny-0-e failed: Evicted"),
    "crash loop": (
        [deployment(NOT_READY), slot(engines=[engine(deaths=5, lastExit="6")]), SLOT_POD, ENGINE],
        "servers of tiny-0-e died 5 times in a row without a first token, the last with exit 6 (a device error)"),
    "weights are read": (
        [deployment(NOT_READY), slot(engines=[engine(phase="filling")], weightSets=[FILLING]), SLOT_POD, ENGINE],
        "tiny-0: weights are being read: 43% of 60.0 GiB (target)."),
    "the gate": (
        [deployment(NOT_READY), slot(engines=[engine()], message="needs 70 GiB, 60 GiB are free"), SLOT_POD, ENGINE],
        "tiny-0: needs 70 GiB, 60 GiB are free."),
    "starting": (
        [deployment(NOT_READY), slot(engines=[engine(phase="attached")]), SLOT_POD, ENGINE],
        "the server of tiny-0-e is starting (last step: attached)."),
    "degraded": (
        [deployment(READY, condition("Degraded", "True", "EngineHung", "tiny-0-e hung"))],
        "Degraded (EngineHung): tiny-0-e hung."),
    "no standby": (
        [deployment(READY, condition("StandbyReady", "False", "Waiting", "no memory"))],
        "No standby could take over (Waiting): no memory."),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "sentence"), CASES.values(), ids=CASES.keys())
def test_what_is_missing_is_named(objects: list[dict[str, object]], sentence: str) -> None:
    assert sentence in "\n".join(explain(seen(*objects)))


def test_the_first_link_that_is_missing_ends_a_slots_chain() -> None:
    looked = seen(deployment(NOT_READY), slot(), unschedulable("slot", "tiny-0", "no room"))
    assert [line for line in explain(looked) if line.startswith("tiny-0")] == [
        "tiny-0: no node takes slot pod tiny-0: no room."
    ]


def test_a_slot_that_serves_needs_no_sentence() -> None:
    looked = seen(deployment(READY), slot(condition("Serving", "True")), SLOT_POD, ENGINE)
    assert explain(looked) == ["tiny answers requests (1 of 1 slots serve), for 30 s."]


def test_the_last_warning_is_told_while_nobody_answers() -> None:
    old, new = event("Old", "x", warning=True, ago=50), event("FailedMount", "y", about="tiny-0", warning=True, ago=5)
    foreign = event("Other", "z", about="somebody-else", warning=True, ago=1)
    told = explain(seen(deployment(NOT_READY), slot(), events=(new, old, foreign)))
    assert told[-1] == "The last warning, about tiny-0: FailedMount: y"
