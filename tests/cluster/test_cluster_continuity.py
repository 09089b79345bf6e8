"""Rule 3 on real nodes: whatever dies or changes, no client is refused, and only a dead server breaks requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks import continuity
from benchmarks.continuity_events import EVENTS, Scene
from tests.support import cluster as support
from tests.support import well

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster

NAME = "continuity"
RATE = 20.0


@pytest.fixture(scope="module")
def scene(cluster: Cluster, model: str) -> Iterator[Scene]:
    """A LingDeployment that serves with the torch-free engine, and a client pod on the other node; for all events."""
    well.settle(cluster)
    with support.trial(cluster) as trial:
        trial.apply(support.deployment(NAME, model, image=support.STANDIN))
        trial.wait_condition(NAME, "Ready")
        found = Scene(trial.cluster, trial.name, NAME)
        trial.client(away_from=found.slot()["status"]["node"])
        found.url = trial.address(NAME)
        yield found


@pytest.mark.parametrize("mode", ["new", "keep"])
@pytest.mark.parametrize("event", EVENTS)
def test_clients_notice_nothing_but_a_dead_server(scene: Scene, cluster: Cluster, event: str, mode: str) -> None:
    if event in ("agent", "keeper") and not cluster.local:
        pytest.skip("killing a container's first process needs the local cluster")
    seen = continuity.observe(scene, event, EVENTS[event], mode, RATE)
    assert seen.sent > RATE
    assert seen.ok, seen
    assert seen.failures.get("broken", 0) <= seen.in_flight[0] + RATE * 0.5, seen
