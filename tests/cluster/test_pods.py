"""Every object that the operator makes passes a real API server, the pods Pod Security `restricted` too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

GOLDEN = sorted((Path(__file__).parents[1] / "unit/operator/golden").glob("*.yaml"))
NAMESPACE = "golden"


@pytest.fixture(scope="module")
def plane() -> Iterator[apiserver.ControlPlane]:
    """A control plane with the namespace and the names that the pods refer to."""
    if apiserver.programs() is None:
        pytest.skip("the control plane's programs are not built: hack/cluster/build")
    plane = apiserver.shared()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    needed = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}},
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "serving"},
            "value": 1000,
        },
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
    ]
    text = "\n---\n".join(json.dumps(one) for one in needed)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    yield plane
    plane.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=text)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_the_operator_makes_is_taken(plane: apiserver.ControlPlane, path: Path) -> None:
    body: dict[str, Any] = yaml.safe_load(path.read_text())
    body["metadata"]["namespace"] = NAMESPACE
    taken = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body), check=False)
    assert taken.returncode == 0, taken.stderr
    assert "violate" not in taken.stderr
    kept = json.loads(taken.stdout)
    assert set(body.get("spec", {})) <= set(kept.get("spec", {})), "a field that the API server does not know"
