"""What a LingDeployment's status says of speed: the means of the engines that serve."""

from __future__ import annotations

from typing import Any

import pytest

from ling_api.slotstatus import Active, EngineStatus, LingSlotStatus
from ling_api.v1alpha1 import LingDeploymentSpec, LingSlotSpec, revision_of
from ling_operator.plan import plan
from ling_operator.settings import Images
from ling_operator.status import build_status
from ling_operator.views import Observed, PodView, Previous, SlotView

NOW = 1_000_000.0
IMAGES = Images(nodeagent="agent:1", reference="engine:1", sglang="sglang:1")
SPEC = LingDeploymentSpec.from_dict({"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}})
REVISION = revision_of(SPEC.part)


def slot(number: int, figures: dict[str, Any]) -> SlotView:
    """A slot whose active engine has told its figures."""
    name = f"chat-{number}"
    engine = EngineStatus(pod=f"{name}-{REVISION}-0", uid=f"uid-{name}-e", revision=REVISION, role="active", **figures)
    spec = LingSlotSpec(
        deployment="chat",
        revision=REVISION,
        revisions=(REVISION,),
        capacity=SPEC.memory,
        grace_seconds=120,
        hold_seconds=60,
    )
    active = Active(pod=engine.pod, uid=engine.uid, term=1)
    status = LingSlotStatus(node="node-1", active=active, engines=(engine,))
    return SlotView(
        name=name, uid=f"uid-{name}", number=number, deleting=False, owned=True, spec=spec, status=status, created=NOW
    )


def engine_pod(number: int) -> PodView:
    name = f"chat-{number}"
    return PodView(
        name=f"{name}-{REVISION}-0",
        uid=f"uid-{name}-e",
        slot=name,
        slot_uid=f"uid-{name}",
        component="engine",
        revision=REVISION,
        number=0,
        node="node-1",
        deleting=False,
        phase="Running",
        ready=True,
        serving=False,
        unschedulable=False,
        broken=False,
        trouble="",
        created=NOW,
    )


FAST = {"ttft_ms": 10.0, "tpot_ms": 1.0, "accept_length": 5.0}
SLOW = {"ttft_ms": 20.0, "tpot_ms": 3.0}


@pytest.mark.parametrize(
    ("engines", "performance"),
    [
        pytest.param([{}], None, id="nobody has measured"),
        pytest.param(
            [{"requests": 4, **SLOW}],
            {"requests": 4, "ttftMs": 20.0, "tpotMs": 3.0, "tokensPerSecond": 333.3},
            id="plain decoding",
        ),
        pytest.param(
            [{"requests": 3, **FAST}, {"requests": 1, "ttft_ms": 30.0, "tpot_ms": 5.0, "accept_length": 3.0}],
            {"requests": 4, "ttftMs": 15.0, "tpotMs": 2.0, "acceptLength": 4.5, "tokensPerSecond": 500.0},
            id="weighed by requests",
        ),
        pytest.param(
            [{"requests": 1, **FAST}, {"requests": 3, **SLOW}],
            {"requests": 4, "ttftMs": 17.5, "tpotMs": 2.5, "acceptLength": 5.0, "tokensPerSecond": 400.0},
            id="in the middle of a roll, only one verifies",
        ),
        pytest.param(
            [
                {"requests": 900, "samples": 256, "window_seconds": 40.5, **SLOW},
                {"requests": 9, "samples": 9, "window_seconds": 71.25, **SLOW},
            ],
            {
                "requests": 909,
                "ttftMs": 20.0,
                "tpotMs": 3.0,
                "tokensPerSecond": 333.3,
                "samples": 265,
                "windowSeconds": 71.25,
            },
            id="what the means are of",
        ),
    ],
)
def test_performance_is_the_mean_of_the_active_engines(
    engines: list[dict[str, Any]], performance: dict[str, Any] | None
) -> None:
    seen = Observed(
        name="chat",
        namespace="prod",
        uid="uid-chat",
        generation=1,
        resource_version="1",
        deleting=False,
        spec=SPEC,
        complaint="",
        previous=Previous(),
        slots=tuple(slot(number, one) for number, one in enumerate(engines)),
        pods=tuple(engine_pod(number) for number, _ in enumerate(engines)),
    )
    assert build_status(seen, plan(seen, IMAGES, NOW), NOW).get("performance") == performance
