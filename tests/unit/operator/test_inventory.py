"""How many devices nodes have, as far as it is certain."""

from __future__ import annotations

from typing import Any

import pytest

from ling_operator.inventory import claimable, driver_of, pluggable


def device_class(*expressions: str) -> dict[str, Any]:
    return {"spec": {"selectors": [{"cel": {"expression": one}} for one in expressions]}}


def slice_of(
    node: str, count: int, *, driver: str = "a.example.com", pool: str = "", generation: int = 1, of: int = 1
) -> Any:
    spec = {
        "driver": driver, "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of},
        "devices": [{"name": str(number)} for number in range(count)],
    }  # fmt: skip
    return {"spec": {**spec, "nodeName": node} if node else {**spec, "allNodes": True}}


@pytest.mark.parametrize(
    ("body", "driver"),
    [
        pytest.param(device_class('device.driver == "a.example.com"'), "a.example.com", id="a driver"),
        pytest.param(
            device_class("device.driver=='gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
            "gpu.nvidia.com",
            id="and an attribute",
        ),
        pytest.param(device_class("device.attributes['x'].y == 'z'"), "", id="no driver"),
        pytest.param(device_class("device.driver == 'a' || device.driver == 'b'"), "", id="one or the other"),
        pytest.param(device_class("device.driver == 'a'", "device.driver == 'b'"), "", id="nothing can be both"),
        pytest.param({"spec": {}}, "", id="every device"),
        pytest.param(None, "", id="no such class"),
    ],
)
def test_the_driver_of_a_class(body: Any, driver: str) -> None:
    assert driver_of(body) == driver


A = device_class("device.driver == 'a.example.com'")


@pytest.mark.parametrize(
    ("slices", "found"),
    [
        pytest.param([slice_of("n1", 8), slice_of("n2", 4)], {"n1": 8, "n2": 4}, id="two nodes"),
        pytest.param([slice_of("n1", 8), slice_of("n1", 2)], {"n1": 10}, id="a pool in two slices"),
        pytest.param([slice_of("n1", 8), slice_of("n1", 6, generation=2)], {"n1": 6}, id="the newest of a pool"),
        pytest.param([slice_of("n1", 8, driver="b.example.com")], {}, id="another driver's"),
        pytest.param([slice_of("n1", 8), slice_of("", 4, pool="net")], None, id="devices of all nodes"),
        pytest.param([slice_of("n1", 8, of=2)], None, id="a pool that is just being published"),
        pytest.param([slice_of("n1", 8, of=2), slice_of("n1", 1, of=2)], {"n1": 9}, id="all slices of it"),
        pytest.param([], {}, id="none"),
    ],
)
def test_devices_by_node(slices: list[Any], found: Any) -> None:
    assert claimable(A, slices) == found
    assert claimable(None, slices) is None


def test_devices_of_a_plugin_by_node() -> None:
    def node(name: str, **allocatable: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}

    nodes = [node("n1", gpu="8"), node("n2"), node("n3", gpu="many")]
    assert pluggable(nodes, "gpu") == {"n1": 8, "n2": 0, "n3": 0}
