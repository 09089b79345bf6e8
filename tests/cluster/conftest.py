"""The fixtures of cluster tests: `cluster` once a run, `trial` (a namespace) once a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import cluster as support
from tests.support import well

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes with Ling installed; with KUBECONFIG set, that cluster."""
    with support.cluster_under_test() as running:
        yield running


@pytest.fixture(autouse=True)
def _well(request: pytest.FixtureRequest) -> None:
    """What the test before did to nodes, agents or operator is over."""
    if "cluster" in request.fixturenames:
        well.settle(request.getfixturevalue("cluster"))


@pytest.fixture
def trial(cluster: Cluster) -> Iterator[support.Trial]:
    """A namespace of this test's own, Pod Security `restricted` enforced."""
    with support.trial(cluster) as own:
        yield own


@pytest.fixture(scope="session")
def model(cluster: Cluster) -> str:
    """`model.source` of a tiny random checkpoint that every node has."""
    return cluster.make_model("tiny")
