"""examples/benchmark.yaml: its flags are flags, its rights are what they do and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ling_bench import arguments
from ling_bench.arguments import RunWishes

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((ROOT / "examples/benchmark.yaml").read_text())}


def test_its_flags_are_flags(objects: dict[str, Any]) -> None:
    (container,) = objects["Job"]["spec"]["template"]["spec"]["containers"]
    found = arguments.parse(container["args"])
    assert container["command"] == ["ling-bench"]
    assert isinstance(found, RunWishes)
    assert found.configmap == objects["ConfigMap"]["metadata"]["name"]
    assert found.deployment == "tiny"


def test_its_rights_are_one_write_and_what_is_stamped(objects: dict[str, Any]) -> None:
    rights = {(one["resources"][0], *one["verbs"], *one.get("resourceNames", ())) for one in objects["Role"]["rules"]}
    assert rights == {("configmaps", "patch", "tiny-bench"), ("lingdeployments", "get", "tiny"), ("lingslots", "list")}


def test_its_names_belong_together(objects: dict[str, Any]) -> None:
    name = objects["ServiceAccount"]["metadata"]["name"]
    assert objects["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == name
    assert objects["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    assert objects["RoleBinding"]["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
