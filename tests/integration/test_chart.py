"""The chart, rendered by real helm: what it makes, what it refuses, and what an upgrade of it leaves alone."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.support import chart
from tests.support.chart import CHART, EVERYTHING, ROOT, find, render

from ling_nodeagent import settings as agent_settings
from ling_operator import settings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(chart.helm_path() is None, reason="helm is not built: hack/cluster/build")

WORKLOADS = ("Deployment", "DaemonSet", "Pod")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module")
def plain() -> list[chart.Object]:
    return render()


@pytest.fixture(scope="module")
def everything() -> list[chart.Object]:
    return render("-f", str(EVERYTHING))


def pod_of(body: chart.Object) -> dict[str, Any]:
    """The pod (template) of a workload, metadata and spec."""
    pod: dict[str, Any] = body if body["kind"] == "Pod" else body["spec"]["template"]
    return pod


@pytest.mark.parametrize("values", [(), ("-f", str(EVERYTHING))], ids=["defaults", "everything"])
def test_lint_is_clean(values: tuple[str, ...]) -> None:
    done = chart.helm("lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\[(WARNING|ERROR)]", done.stdout)


@pytest.mark.parametrize("version", ["1.34.0", "1.35.3", "1.36.0", "1.37.2", "1.34.7-gke.100"])
def test_it_is_for_kubernetes_since_1_34(version: str) -> None:
    assert render("--kube-version", version)


def test_an_older_kubernetes_is_refused() -> None:
    done = chart.helm("template", "ling", str(CHART), "--kube-version", "1.33.9")
    assert done.returncode != 0
    assert "1.34" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("agent.kubeletdir=/x", "kubeletdir"),
        ("agent.modelsDir=models", "modelsDir"),
        ("operator.reconcilers=0", "reconcilers"),
        ("image.registry=", "registry"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("operator.image.digest=sha256:12", "digest"),
        ("agent.namespace=Ling_Agents", "namespace"),
        ("metrics.podMonitor.interval=often", "interval"),
        ("networkPolicy.apiServerPorts={70000}", "apiServerPorts"),
        ("typo=1", "typo"),
    ],
    ids=lambda one: str(one).split("=")[0],
)
def test_a_wrong_value_is_refused_by_its_name(wrong: str, told: str) -> None:
    done = chart.helm("template", "ling", str(CHART), "--set", wrong)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_schema_knows_every_default_value() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())

    def compare(value: object, known: dict[str, Any], where: str) -> None:
        known = schema["$defs"]["image"] if "$ref" in known else known
        if isinstance(value, dict) and known.get("additionalProperties") is False:
            assert set(value) - {"global"} == set(known["properties"]) - {"global"}, where
            for key, each in value.items():
                compare(each, known["properties"][key], f"{where}.{key}")

    compare(VALUES, schema, "values")


def test_the_crds_are_those_of_the_repository_and_are_upgraded_with_the_chart(plain: list[chart.Object]) -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        own = yaml.safe_load(path.read_text())
        rendered = find(plain, "CustomResourceDefinition", own["metadata"]["name"])
        assert rendered["spec"] == own["spec"]
        assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "uninstall must leave them"
    assert not (CHART / "crds").exists(), "helm installs that folder once and never upgrades it"


def test_crds_can_be_left_out_or_given_up() -> None:
    kinds = {one["kind"] for one in render("--set", "crds.install=false")}
    assert "CustomResourceDefinition" not in kinds
    given_up = render("--set", "crds.keep=false")
    assert find(given_up, "CustomResourceDefinition", "lingslots.ling.dev")["metadata"]["annotations"] == {}


def test_a_new_chart_version_changes_no_pod_template(everything: list[chart.Object], tmp_path: Path) -> None:
    copy = tmp_path / "ling"
    shutil.copytree(CHART, copy)
    text = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(text.replace("\nversion: 0.1.0", "\nversion: 9.9.9"))
    newer = render("-f", str(EVERYTHING), chart=copy)
    assert newer != everything
    for body in everything:
        if body["kind"] in WORKLOADS[:2]:
            assert pod_of(find(newer, body["kind"], body["metadata"]["name"])) == pod_of(body)


def test_chart_and_version_stand_on_objects_and_never_on_pods(everything: list[chart.Object]) -> None:
    for body in everything:
        labels = body["metadata"].get("labels", {})
        assert labels.get("helm.sh/chart") == "ling-0.1.0" or body["kind"].endswith("Binding"), body["metadata"]["name"]
        if body["kind"] in WORKLOADS[:2]:
            carried = pod_of(body)["metadata"]
            assert set(carried) == {"labels"}
            assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(carried["labels"])
            assert body["spec"]["selector"]["matchLabels"].items() <= carried["labels"].items()


def test_the_operator_gets_arguments_that_it_takes(everything: list[chart.Object]) -> None:
    container = pod_of(find(everything, "Deployment", "ling-operator"))["spec"]["containers"][0]
    environment = {one["name"]: one["value"] for one in container["env"]}
    read = settings.read(container["args"], environment)
    assert read.namespaces == ("team-a", "team-b")
    assert read.agent_namespace == "ling-agents"
    assert read.images.reference == "registry.example/engine:2"
    assert read.images.sglang == "registry.example/ling/ling-engine:v1"
    assert read.images.nodeagent == "registry.example/ling/ling-nodeagent:v1"


def test_the_agent_gets_arguments_that_it_takes(plain: list[chart.Object], tmp_path: Path) -> None:
    container = pod_of(find(plain, "DaemonSet", "ling-agent"))["spec"]["containers"][0]
    arguments = [one for one in container["args"] if "--plugin-dir" not in one]  # that one must be there
    in_a_pod = {"NODE_NAME": "n1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    read = agent_settings.parse([*arguments, f"--plugin-dir={tmp_path}"], in_a_pod)
    assert isinstance(read, agent_settings.Serve)
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    assert {str(read.run_dir), str(read.models_dir), str(read.cache_dir), str(read.pod_resources.parent)} <= mounted


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), "localhost/ling-operator:0.1.0"),
        (("image.tag=v2",), "localhost/ling-operator:v2"),
        (("image.registry=r.example/x", "operator.image.tag=v3"), "r.example/x/ling-operator:v3"),
        (("operator.image.repository=r.example/own",), "r.example/own:0.1.0"),
        ((f"operator.image.digest=sha256:{'a' * 64}",), f"localhost/ling-operator@sha256:{'a' * 64}"),
    ],
    ids=["defaults", "tag", "registry", "repository", "digest"],
)
def test_images(values: tuple[str, ...], image: str) -> None:
    objects = render(*(word for value in values for word in ("--set", value)))
    assert pod_of(find(objects, "Deployment", "ling-operator"))["spec"]["containers"][0]["image"] == image


def test_every_pod_but_the_agents_meets_pod_security_restricted(everything: list[chart.Object]) -> None:
    for body in everything:
        if body["kind"] not in WORKLOADS:
            continue
        spec = pod_of(body)["spec"]
        container = spec["containers"][0]["securityContext"]
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container["allowPrivilegeEscalation"] is False
        assert container["readOnlyRootFilesystem"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostPID", "hostIPC", "hostNetwork"} & set(spec)
        if body["kind"] != "DaemonSet":
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert "volumes" not in spec
            assert body["metadata"]["namespace"] == "ling-system"


def test_the_agents_exception_is_its_folders_and_its_user(plain: list[chart.Object]) -> None:
    agent = find(plain, "DaemonSet", "ling-agent")
    spec = agent["spec"]["template"]["spec"]
    assert {one["hostPath"]["path"] for one in spec["volumes"]} == {
        "/run/ling", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/var/lib/ling/models",
        "/var/lib/ling/jit",
    }  # fmt: skip
    read_only = {one["name"] for one in spec["containers"][0]["volumeMounts"] if one.get("readOnly")}
    assert read_only == {"pod-resources", "models"}
    assert spec["containers"][0]["securityContext"]["runAsUser"] == 0
    assert agent["metadata"]["namespace"] == "ling-agents"
    namespaces = [one for one in plain if one["kind"] == "Namespace"]
    assert [one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for one in namespaces] == ["privileged"]
    assert agent["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_monitoring_is_off_until_asked_for(plain: list[chart.Object], everything: list[chart.Object]) -> None:
    asked = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "NetworkPolicy", "ConfigMap"}
    assert not asked & {one["kind"] for one in plain}
    assert asked <= {one["kind"] for one in everything}
    assert find(everything, "ServiceMonitor", "ling-operator")["metadata"]["labels"]["release"] == "prometheus"


def test_monitors_name_ports_that_pods_have(everything: list[chart.Object]) -> None:
    agent = pod_of(find(everything, "DaemonSet", "ling-agent"))["spec"]["containers"][0]
    scraped = find(everything, "PodMonitor", "ling-agent")["spec"]["podMetricsEndpoints"]
    assert [one["port"] for one in scraped] == [one["name"] for one in agent["ports"]]
    service = find(everything, "Service", "ling-operator")["spec"]
    assert [one["port"] for one in find(everything, "ServiceMonitor", "ling-operator")["spec"]["endpoints"]] == [
        one["name"] for one in service["ports"]
    ]


def test_alerts_and_dashboard_are_the_files(everything: list[chart.Object]) -> None:
    rules = find(everything, "PrometheusRule", "ling")["spec"]
    assert rules == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    board = find(everything, "ConfigMap", "ling-dashboard")
    assert board["data"]["ling.json"].strip() == (CHART / "files/dashboard.json").read_text().strip()
    assert board["metadata"]["namespace"] == "monitoring"


def test_network_policies_let_in_scrapes_alone(everything: list[chart.Object]) -> None:
    policies = [one for one in everything if one["kind"] == "NetworkPolicy"]
    assert {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in policies} == {
        ("ling-system", "ling-operator"),
        ("ling-agents", "ling-agent"),
    }
    for one in policies:
        assert one["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert one["spec"]["ingress"][0]["ports"] == [{"port": 9400, "protocol": "TCP"}]
        assert {port["port"] for rule in one["spec"]["egress"] for port in rule["ports"]} == {443, 6443, 53}


def test_every_policy_of_admission_is_bound(plain: list[chart.Object]) -> None:
    policies = {one["metadata"]["name"] for one in plain if one["kind"] == "ValidatingAdmissionPolicy"}
    bound = [one["spec"] for one in plain if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert policies == {one["policyName"] for one in bound}
    assert all(one["validationActions"] == ["Deny", "Audit"] for one in bound)


def test_nobody_gets_a_wildcard(everything: list[chart.Object]) -> None:
    for body in everything:
        for rule in body.get("rules", ()):
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
