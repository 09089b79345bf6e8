"""Reading a cluster over a kept connection gives what kubectl gives, and says what went wrong as kubectl does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hack.cluster import objects
from hack.ports import free_port
from tests.support import apiserver

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster
LABELLED = "looked=at"


@pytest.fixture(scope="module")
def plane() -> apiserver.ControlPlane:
    if apiserver.programs() is None:
        pytest.skip("the control plane's programs are not built: hack/cluster/build")
    plane = apiserver.shared()
    plane.kubectl("create", "namespace", "objects")
    for name in ("one", "two"):
        plane.kubectl("create", "configmap", name, "-n", "objects")
    plane.kubectl("label", "configmap", "two", LABELLED, "-n", "objects")
    return plane


@pytest.mark.parametrize("kind", ["cm", "configmap", "configmaps"])
def test_an_object_is_the_same_by_every_name_of_its_kind(plane: apiserver.ControlPlane, kind: str) -> None:
    said = json.loads(plane.kubectl("get", kind, "one", "-n", "objects", "-o", "json").stdout)
    assert objects.reader(plane.kubeconfig).one(kind, "one", "objects") == said


@pytest.mark.parametrize("selector", ["", LABELLED], ids=["all", "labelled"])
def test_a_list_is_the_same(plane: apiserver.ControlPlane, selector: str) -> None:
    said = json.loads(plane.kubectl("get", "cm", "-n", "objects", "-l", selector, "-o", "json").stdout)
    found = objects.reader(plane.kubeconfig).all("cm", "objects", selector)
    assert found["items"] == said["items"]
    assert (len(found["items"]) == 1) is bool(selector)


@pytest.mark.parametrize("kind", ["crd", "cm"], ids=["of the cluster", "of a namespace"])
def test_kinds_of_groups_are_found(plane: apiserver.ControlPlane, kind: str) -> None:
    said = json.loads(plane.kubectl("get", kind, "-n", "objects", "-o", "json").stdout)
    found = objects.reader(plane.kubeconfig).all(kind, "objects")
    assert [known(each) for each in found["items"]] == [known(each) for each in said["items"]]


def known(item: dict[str, Any]) -> tuple[str, ...]:
    return item["apiVersion"], item["kind"], item["metadata"]["name"], item["metadata"]["uid"]


@pytest.mark.parametrize(("kind", "name"), [("cm", "three"), ("nothing-like-it", "one")], ids=["object", "kind"])
def test_what_is_not_there_is_none_or_told(plane: apiserver.ControlPlane, kind: str, name: str) -> None:
    reader = objects.reader(plane.kubeconfig)
    assert reader.find(kind, name, "objects") is None
    with pytest.raises(objects.ReadError) as told:
        reader.one(kind, name, "objects")
    assert told.value.reason == "NotFound"
    assert (name if kind == "cm" else kind) in str(told.value)


def test_without_rights_it_is_told_and_is_not_taken_for_nothing(plane: apiserver.ControlPlane, tmp_path: Path) -> None:
    nobody = tmp_path / "kubeconfig"
    nobody.write_text(plane.kubeconfig.read_text().replace(apiserver.TOKEN, "nobody"))
    with pytest.raises(objects.ReadError, match="Unauthorized"):
        objects.reader(nobody).find("cm", "one", "objects")


def test_a_cluster_that_is_gone_is_told(plane: apiserver.ControlPlane, tmp_path: Path) -> None:
    gone = tmp_path / "kubeconfig"
    with pytest.raises(objects.ReadError, match="No such file"):
        objects.reader(gone)
    gone.write_text(plane.kubeconfig.read_text().replace(plane.url, f"https://127.0.0.1:{free_port()}"))
    with pytest.raises(objects.ReadError, match="refused"):
        objects.reader(gone).find("cm", "one", "objects")
