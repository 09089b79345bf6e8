"""Who may write what: attacks on Ling's objects, tried on a real API server with the chart's admission policies."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import apiserver, chart

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATOR = "system:serviceaccount:ling-system:ling-operator"
AGENT = "system:serviceaccount:ling-agents:ling-agent"
OTHER = "system:serviceaccount:team:default"
NODE_KEY = "authentication.kubernetes.io/node-name"
LING = "/apis/ling.dev/v1alpha1/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
FAILURE = "validation.policy.admission.k8s.io/validation_failure"  # of an audit event: policies that refused, as JSON

type Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Person:
    """Somebody who may do everything by RBAC, so that admission alone refuses."""

    plane: apiserver.ControlPlane
    user: str
    node: str = ""

    def ask(self, method: str, path: str, body: Object | None = None, kind: str = "json") -> tuple[int, Object]:
        """Status and body of the API server's answer; asked again while it is too busy to give one (429)."""
        deadline = time.monotonic() + 120
        while (said := self._once(method, path, body, kind))[0] == 429 and time.monotonic() < deadline:
            time.sleep(0.1)
        return said

    def _once(self, method: str, path: str, body: Object | None, kind: str) -> tuple[int, Object]:
        headers = {"Authorization": f"Bearer {apiserver.TOKEN}", "Content-Type": f"application/{kind}"}
        headers |= {"Impersonate-User": self.user, "Impersonate-Group": "system:masters"}
        if self.node:
            headers[f"Impersonate-Extra-{urllib.parse.quote(NODE_KEY, safe='')}"] = self.node
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.plane.url}{path}", data=data, method=method, headers=headers)
        context = ssl.create_default_context(cafile=str(self.plane.folder / "server.crt"))
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def must(self, method: str, path: str, body: Object | None = None, kind: str = "json") -> Object:
        """The body of an answer that is no refusal."""
        status, answer = self.ask(method, path, body, kind)
        assert status < 300, f"{self.user}: {method} {path}: {status}: {answer.get('message')}"
        return answer


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ControlPlane]:
    if apiserver.programs() is None or chart.helm_path() is None:
        pytest.skip("the control plane's programs are not built: hack/cluster/build")
    with apiserver.control_plane(tmp_path_factory.mktemp("admission"), audit=True) as running:
        running.kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(map(json.dumps, policies())))
        admin = Person(plane=running, user="admin")
        for name in ("slot-a", "slot-b"):
            running_in(admin, name)
        yield running


PROBED = "ling-owned"  # the policy whose refusal says that all of them are in force


def policies() -> list[Object]:
    """The chart's policies and their bindings, the probed one's last.

    The API server learns of each kind in the order of writing and takes up all that it knows of at once, every second.
    """
    found = [one for one in chart.render() if one["kind"].startswith("ValidatingAdmissionPolicy")]
    assert PROBED in [one["metadata"]["name"] for one in found]
    return sorted(found, key=lambda one: one["metadata"]["name"] == PROBED)


def slot(name: str, capacity: int = 1 << 30) -> Object:
    spec = {"deployment": "tiny", "revision": "0" * 8, "revisions": ["0" * 8], "capacity": capacity}
    return {
        "apiVersion": "ling.dev/v1alpha1",
        "kind": "LingSlot",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**spec, "graceSeconds": 10, "holdSeconds": 10},
    }


def status(name: str, node: str, manager: str = "x", **more: Any) -> tuple[str, str, Object, str]:
    """A server-side apply of a slot's status."""
    told = {"node": node, **more} if node else more
    body = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "metadata": {"name": name}, "status": told}
    query = f"?fieldManager={manager}&force=true"
    return "PATCH", f"{LING}/lingslots/{name}/status{query}", body, "apply-patch+yaml"


def condition(kind: str, truth: str = "True") -> Object:
    when = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": truth, "reason": "R", "message": "", "lastTransitionTime": when}


def pod(name: str, *, owner: str = "", uid: str = "forged", **labels: str) -> Object:
    meta: Object = {"name": name, "labels": {key.replace("_", "/"): value for key, value in labels.items()}}
    if owner:
        reference = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "name": owner, "uid": uid}
        meta["ownerReferences"] = [{**reference, "controller": True}]
    container = {"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def running_in(admin: Person, name: str) -> None:
    """Once the policies are in force: a slot that lives on n1, told by everybody who has a say."""
    operator = Person(plane=admin.plane, user=OPERATOR)
    deadline = time.monotonic() + 120
    while admin.ask("POST", f"{LING}/lingslots?dryRun=All", slot("probe"))[0] != 422:  # see policies()
        assert time.monotonic() < deadline, "the policies are not in force"
        time.sleep(0.1)
    operator.must("POST", f"{LING}/lingslots", slot(name))
    agent = Person(plane=admin.plane, user=AGENT, node="n1")
    agent.must(*status(name, "n1", "ling-nodeagent", conditions=[condition("Serving")]))
    operator.must(*status(name, "", "ling-operator", conditions=[condition("AgentLost", "False")]))


MERGE = "merge-patch+json"
SLOT_A = f"{LING}/lingslots/slot-a"
ATTACKS: dict[str, tuple[str, str, tuple[str, str, Object | None, str], str]] = {
    "a foreign node's agent claims a slot": (
        AGENT, "n2", status("slot-a", "n2", "ling-nodeagent"), 'this slot lives on node "n1"'),
    "a foreign node's agent says that it is another": (
        AGENT, "n2", status("slot-a", "n1", "ling-nodeagent"), 'an agent on node "n2" writes slots of that node only'),
    "an agent's token without a node": (
        AGENT, "", status("slot-a", "n1", "ling-nodeagent"), 'an agent on node ""'),
    "an agent takes a slot's node away": (
        AGENT, "n1", ("PATCH", f"{SLOT_A}/status", {"status": {"node": None}}, MERGE), "slots of that node only"),
    "an agent says that it is not lost": (
        AGENT, "n1", ("PATCH", f"{SLOT_A}/status", {"status": {"conditions": []}}, MERGE), "AgentLost is the operator"),
    "an agent edits a slot": (
        AGENT, "n1", ("PATCH", SLOT_A, {"spec": {"capacity": 1}}, MERGE), "by the operator only"),
    "an agent makes a slot": (AGENT, "n1", ("POST", f"{LING}/lingslots", slot("mine"), "json"), "by the operator only"),
    "an agent tells of a deployment": (
        AGENT, "n1", ("PATCH", f"{LING}/lingdeployments/tiny/status", {"status": {"message": "x"}}, MERGE),
        "by the operator only"),
    "an agent makes a pod of a slot": (
        AGENT, "n1", ("POST", PODS, pod("spy", owner="slot-a"), "json"), "by the operator only"),
    "a person writes a slot's status": (
        "alice", "", status("slot-a", "n1"), "written by its node agent and the operator only, not by alice"),
    "a foreign account names the node in its status": (
        OTHER, "n1", status("slot-a", "n1"), "written by its node agent and the operator only"),
    "a person makes a slot": ("alice", "", ("POST", f"{LING}/lingslots", slot("hers"), "json"), "edit the LingDeploy"),
    "a person wishes another engine active": (
        "alice", "", ("PATCH", SLOT_A, {"spec": {"wish": {"pod": "x", "term": 1}}}, MERGE), "edit the LingDeployment"),
    "a person names another deployment": (
        "alice", "", ("PATCH", SLOT_A, {"spec": {"deployment": "other"}}, MERGE), "edit the LingDeployment"),
    "a person says that a deployment is ready": (
        "alice", "", ("PATCH", f"{LING}/lingdeployments/tiny/status", {"status": {"serving": "9/9"}}, MERGE),
        "by the operator only"),
    "a forged slot owner": (OTHER, "", ("POST", PODS, pod("forged", owner="slot-a"), "json"), "pods of a LingSlot"),
    "a forged slot owner, later": (
        OTHER, "", ("PATCH", f"{PODS}/bystander",
                    {"metadata": {"ownerReferences": pod("x", owner="slot-a")["metadata"]["ownerReferences"]}}, MERGE),
        "pods of a LingSlot"),
    "a pod that wants a slot's requests": (
        OTHER, "", ("POST", PODS, pod("thief", ling_dev="x", **{"ling.dev/serving": "true"}), "json"),
        "where requests go"),
    "a pod that wants a slot's requests, later": (
        OTHER, "", ("PATCH", f"{PODS}/bystander", {"metadata": {"labels": {"ling.dev/serving": "true"}}}, MERGE),
        "where requests go"),
    "taking the requests away from a slot": (
        OTHER, "", ("PATCH", f"{PODS}/slot-a", {"metadata": {"labels": {"ling.dev/serving": None}}}, MERGE),
        "where requests go"),
    "the operator tells who serves": (
        OPERATOR, "", status("slot-a", "", "ling-operator", active={"pod": "x", "term": 9}), "AgentLost only"),
    "the operator says that a slot serves": (
        OPERATOR, "", status("slot-a", "", "ling-operator", conditions=[condition("Serving", "False")]),
        "AgentLost only"),
    "the operator adds a condition": (
        OPERATOR, "", status("slot-a", "", "ling-operator", conditions=[condition("Degraded")]), "AgentLost only"),
    "the operator takes the agent's conditions away": (
        OPERATOR, "", ("PATCH", f"{SLOT_A}/status", {"status": {"conditions": [condition("AgentLost")]}}, MERGE),
        "AgentLost only"),
    "the operator names the GPU": (
        OPERATOR, "", status("slot-a", "", "ling-operator", computeCapability="9.0"), "AgentLost only"),
    "the operator tells how much memory there is": (
        OPERATOR, "", status("slot-a", "", "ling-operator", capacity={"total": 1}), "AgentLost only"),
    "the operator empties a slot's status": (
        OPERATOR, "", ("PATCH", f"{SLOT_A}/status", {"status": None}, MERGE), "AgentLost only"),
}  # fmt: skip


@pytest.fixture(scope="module")
def peopled(plane: apiserver.ControlPlane) -> apiserver.ControlPlane:
    """With a deployment, a slot pod and a bystander for the attacks to aim at."""
    operator = Person(plane=plane, user=OPERATOR)
    spec = {"model": {"source": "host:///tiny"}, "weightCache": {"memory": "1Gi"}}
    body = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingDeployment", "metadata": {"name": "tiny"}, "spec": spec}
    operator.must("POST", f"{LING}/lingdeployments", body)
    uid = operator.must("GET", SLOT_A)["metadata"]["uid"]  # the garbage collector is awake
    operator.must("POST", PODS, pod("slot-a", owner="slot-a", uid=uid, **{"ling.dev/serving": "true"}))
    Person(plane=plane, user=OTHER).must("POST", PODS, pod("bystander"))
    return plane


def audited(plane: apiserver.ControlPlane, since: int) -> list[tuple[str, list[Object]]]:
    """Who was refused by policies, and by which words, as the audit log tells behind its first `since` bytes."""
    with (plane.folder / "audit.log").open("rb") as log:
        log.seek(since)
        events = [json.loads(line) for line in log if line.endswith(b"\n")]
    return [
        (event["impersonatedUser"]["username"], json.loads(event["annotations"][FAILURE]))
        for event in events
        if FAILURE in event.get("annotations", {})
    ]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_is_refused_and_told_why(
    peopled: apiserver.ControlPlane, attack: tuple[str, str, tuple[str, str, Object | None, str], str]
) -> None:
    user, node, request, why = attack
    before = (peopled.folder / "audit.log").stat().st_size
    code, answer = Person(plane=peopled, user=user, node=node).ask(*request)
    assert code == 422, answer
    assert why in answer["message"]
    deadline = time.monotonic() + 60
    while not (found := audited(peopled, before)):
        assert time.monotonic() < deadline, "the audit log tells nothing of it"
        time.sleep(0.1)
    ((who, failures),) = found
    assert who == user
    assert any(why in one["message"] for one in failures)
    assert all(one["policy"] == one["binding"] and one["policy"].startswith("ling-") for one in failures)


ALLOWED: dict[str, tuple[str, str, tuple[str, str, Object | None, str]]] = {
    "the node's agent tells": (
        AGENT, "n1", status("slot-b", "n1", "ling-nodeagent", conditions=[condition("Serving", "False")])),
    "the operator says that the agent is lost": (
        OPERATOR, "", status("slot-b", "", "ling-operator", conditions=[condition("AgentLost")])),
    "the operator says that the agent is back": (
        OPERATOR, "", status("slot-a", "", "ling-operator", conditions=[condition("AgentLost", "False")])),
    "the operator edits a slot": (
        OPERATOR, "", ("PATCH", f"{LING}/lingslots/slot-b", {"spec": {"capacity": 9}}, MERGE)),
    "the garbage collector takes a finalizer": (
        "system:serviceaccount:kube-system:generic-garbage-collector", "",
        ("PATCH", f"{LING}/lingslots/slot-b", {"metadata": {"finalizers": []}}, MERGE)),
    "a person labels a slot": (
        "alice", "", ("PATCH", f"{LING}/lingslots/slot-b", {"metadata": {"labels": {"team": "x"}}}, MERGE)),
    "a person edits a deployment": (
        "alice", "", ("PATCH", f"{LING}/lingdeployments/tiny", {"spec": {"replicas": 2}}, MERGE)),
    "a person labels a pod of a slot": (
        "alice", "", ("PATCH", f"{PODS}/slot-a", {"metadata": {"labels": {"team": "x"}}}, MERGE)),
    "the garbage collector orphans a pod": (
        "system:serviceaccount:kube-system:generic-garbage-collector", "",
        ("PATCH", f"{PODS}/slot-a", {"metadata": {"ownerReferences": []}}, MERGE)),
    "anybody makes any other pod": (OTHER, "", ("POST", PODS, pod("plain", app="x"), "json")),
    "a person deletes a slot": ("alice", "", ("DELETE", f"{LING}/lingslots/slot-b?dryRun=All", None, "json")),
}  # fmt: skip


@pytest.mark.parametrize("deed", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_has_to_work_works(
    peopled: apiserver.ControlPlane, deed: tuple[str, str, tuple[str, str, Object | None, str]]
) -> None:
    user, node, (method, path, body, kind) = deed
    dry = path + ("&" if "?" in path else "?") + "dryRun=All" if "dryRun" not in path else path
    Person(plane=peopled, user=user, node=node).must(method, dry, body, kind)
