"""What describing a model found reaches the launcher's hello unchanged."""

from __future__ import annotations

from ling_api.identity import Identity
from ling_api.memoryplan import MemoryPlan
from ling_engine import described
from ling_engine.child import described as frame_of
from ling_engine.runtime import Description, SetDescription


def test_sets_plan_and_gpus_in_rank_order_come_through_the_frame() -> None:
    identity = Identity.of("target", {"device": {"type": "cuda", "capability": "9.0"}})
    sets = tuple(SetDescription(role="target", rank=rank, identity=identity, nbytes=7) for rank in range(2))
    gpus = ("GPU-b", "GPU-a")
    found = Description(sets=sets, plan=MemoryPlan({"kv": 5}), device_bytes=99, gpus=gpus, jit="")
    needs = described.needs(frame_of(found))
    assert needs.gpus == gpus
    assert (needs.device_bytes, dict(needs.plan)) == (99, {"kv": 5})
    assert [(one.rank, one.digest) for one in needs.weights] == [(0, identity.digest), (1, identity.digest)]


def test_without_a_gpu_there_is_none_to_name() -> None:
    assert described.needs(frame_of(Description(sets=(), plan=MemoryPlan({})))).gpus == ()
