"""What `ling-bench` asks of Kubernetes, with the rights of examples/benchmark.yaml and a real API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import apiserver
from tests.support.cluster import deployment
from tests.support.fake_endpoint import Endpoint, serving

from ling_bench import __main__ as command
from ling_bench import kube
from ling_bench.errors import PlatformFailed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(apiserver.programs() is None, reason="the control plane is not built: run hack/cluster/build"),
]
PLACE = "bench"
SMALL = ("--input-tokens", "20", "--output-tokens", "25", "--ids", "10-99", "--requests", "1", "--warmup", "1")


@pytest.fixture(scope="module")
def plane() -> apiserver.ControlPlane:
    """With the example in a namespace of its own; its Job gets no pod here."""
    plane = apiserver.shared()
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(plain("Namespace", PLACE)))
    example = (apiserver.ROOT / "examples/benchmark.yaml").read_text()
    plane.kubectl("-n", PLACE, "apply", "-f", "-", stdin=example)
    plane.wait_allowed(f"system:serviceaccount:{PLACE}:tiny-bench", "patch", "configmap/tiny-bench", "-n", PLACE)
    return plane


@pytest.fixture
def as_the_job(plane: apiserver.ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logged in with the token that the Job's pod has."""
    token = plane.kubectl("-n", PLACE, "create", "token", "tiny-bench").stdout.strip()
    own = tmp_path / "job.kubeconfig"
    own.write_text(plane.kubeconfig.read_text().replace(apiserver.TOKEN, token))
    monkeypatch.setenv("KUBECONFIG", str(own))


def plain(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


def kept(plane: apiserver.ControlPlane) -> dict[str, str]:
    found = plane.kubectl("-n", PLACE, "get", "configmap", "tiny-bench", "-o", "json").stdout
    return dict(json.loads(found).get("data", {}))


@pytest.mark.usefixtures("as_the_job")
def test_a_result_is_kept_in_its_configmap_and_in_no_other(plane: apiserver.ControlPlane, tmp_path: Path) -> None:
    with serving(Endpoint()) as at:
        flags = ("--acceptance", "predictable", "--configmap", f"{PLACE}/tiny-bench", "--out", str(tmp_path / "r.json"))
        assert command.main(["run", at.url, *SMALL, *flags]) == 0
    data = kept(plane)
    assert data["verdict"] == "ok"
    assert json.loads(data["result.json"]) == json.loads((tmp_path / "r.json").read_text())
    assert "accept length 4.000" in data["table.txt"]
    plane.kubectl("-n", PLACE, "apply", "-f", "-", stdin=json.dumps(plain("ConfigMap", "other")))
    with pytest.raises(PlatformFailed, match=r"may not patch ConfigMap bench/other: 403"):
        kube.keep(f"{PLACE}/other", {"a": "b"})


@pytest.mark.usefixtures("as_the_job")
def test_a_run_that_fails_says_so_in_its_configmap(plane: apiserver.ControlPlane, tmp_path: Path) -> None:
    with serving(Endpoint()) as at:
        pass
    flags = ("--configmap", f"{PLACE}/tiny-bench", "--out", str(tmp_path / "r.json"))
    assert command.main(["run", at.url, *SMALL, *flags]) == 4
    data = kept(plane)
    assert data["verdict"] == "failed"
    assert "Connection refused" in data["table.txt"]


@pytest.mark.usefixtures("as_the_job")
def test_missing_rights_show_before_anything_is_measured(
    plane: apiserver.ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Endpoint()) as at:
        flags = ("--configmap", "kube-system/tiny-bench", "--out", str(tmp_path / "r.json"))
        assert command.main(["run", at.url, *SMALL, *flags]) == 5
        assert at.bodies == []
    assert "may not patch ConfigMap kube-system/tiny-bench: 403" in capsys.readouterr().err


@pytest.mark.usefixtures("as_the_job")
def test_a_deployment_is_stamped_with_the_rights_of_the_example(plane: apiserver.ControlPlane) -> None:
    plane.kubectl("-n", PLACE, "apply", "-f", "-", stdin=json.dumps(deployment("tiny", "host:///tiny")))
    try:
        found = kube.deployment(f"{PLACE}/tiny")
        assert (found["name"], found["slots"]) == ("tiny", [])
        with pytest.raises(PlatformFailed, match="403"):
            kube.deployment(f"{PLACE}/another")
    finally:
        plane.kubectl("-n", PLACE, "delete", "ld", "tiny")  # or the next operator at this API server makes its pods
