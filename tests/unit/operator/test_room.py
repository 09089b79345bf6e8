"""What serves is given up for room only: what the scheduler says, and what a node has."""

from __future__ import annotations

import pytest

from ling_api.v1alpha1 import LingDeploymentSpec
from ling_operator.room import could_hold, needs
from ling_operator.surroundings import NodeView, node_view
from ling_operator.verdicts import lacks_capacity

BODY = {"status": {"allocatable": {"cpu": "3800m", "memory": "8Gi", "nvidia.com/gpu": "4"}}}
NODE = node_view("a", BODY, ())


@pytest.mark.parametrize(
    ("said", "lacks"),
    [
        pytest.param("2 Insufficient memory.", True, id="memory"),
        pytest.param("2 cannot allocate all claims.", True, id="devices"),
        pytest.param("2 Insufficient nvidia.com/gpu.", True, id="devices of a plugin"),
        pytest.param("2 Too many pods.", True, id="pods"),
        pytest.param("1 Insufficient cpu, 1 Insufficient ling.dev/node-agent.", True, id="one node is full"),
        pytest.param("1 Insufficient memory, 1 node(s) had untolerated taint {a: b}.", True, id="the other is tainted"),
        pytest.param("2 Insufficient ling.dev/node-agent.", False, id="no agent"),
        pytest.param("request gpu: device class gqu does not exist.", False, id="no such device class"),
        pytest.param("2 node(s) didn't match Pod's node affinity/selector.", False, id="no such label"),
        pytest.param("2 node(s) had untolerated taint {a: b}.", False, id="taints"),
        pytest.param("2 node(s) were unschedulable.", False, id="cordoned"),
        pytest.param("", False, id="nothing said"),
    ],
)
def test_only_some_of_what_the_scheduler_says_is_want_of_room(said: str, lacks: bool) -> None:
    assert lacks_capacity(f"no node takes it: 0/2 nodes are available: {said}" if said else "") is lacks


@pytest.mark.parametrize(
    ("resources", "gpu", "holds"),
    [
        pytest.param({}, {}, True, id="the slot alone"),
        pytest.param({"requests": {"cpu": "3800m", "memory": "3Gi"}}, {}, True, id="with its engine"),
        pytest.param({"requests": {"memory": "4Gi"}}, {}, False, id="memory: the keeper needs some too"),
        pytest.param({"requests": {"cpu": "4"}}, {}, False, id="processors"),
        pytest.param({"limits": {"cpu": "4"}}, {}, False, id="a limit stands for a request"),
        pytest.param({"limits": {"cpu": "4"}, "requests": {"cpu": "1"}}, {}, True, id="but not beside one"),
        pytest.param({}, {"allocation": "DevicePlugin", "count": 4}, True, id="all its GPUs"),
        pytest.param({}, {"allocation": "DevicePlugin", "count": 8}, False, id="more GPUs"),
        pytest.param({}, {"allocation": "DevicePlugin", "resource": "nvidia.com/gqu"}, False, id="none of that name"),
        pytest.param({}, {"allocation": "ResourceClaim", "count": 8}, True, id="claims are not counted by nodes"),
    ],
)
def test_an_empty_node_holds_what_it_has(resources: dict[str, object], gpu: dict[str, object], holds: bool) -> None:
    body = {"model": {"source": "host:///tiny"}, "engine": {"resources": resources}, "gpu": gpu}
    spec = LingDeploymentSpec.from_dict({**body, "weightCache": {"memory": "4Gi"}})
    asked = needs(spec.memory, spec.part.gpu, spec.part)
    assert could_hold(NODE, asked) is holds
    assert could_hold(NodeView(name="b"), asked), "nobody has said what it has"
    assert could_hold(None, asked)
