"""Rights: what the audit log of this run saw each of our accounts do is what the chart grants, neither less nor more.

It runs last (tests/conftest.py). That nothing is granted in vain can be said only when the whole suite has run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hack.cluster.access import AGENTS, SYSTEM, ClusterError
from tests.support import chart
from tests.support.cluster import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster
    from tests.support.cluster import Trial

pytestmark = pytest.mark.last

Right = tuple[str, str, str]  # API group, resource with subresource, verb
ACCOUNTS = {
    "ling-operator": f"system:serviceaccount:{SYSTEM}:ling-operator",
    "ling-agent": f"system:serviceaccount:{AGENTS}:ling-agent",
}
# What no request can show: an admission plug-in asks the authorizer for them, to set blockOwnerDeletion. The first test
# here shows that it does, and refuses who lacks them.
ASKED_BY_ADMISSION = {("ling.dev", f"{kind}/finalizers", "update") for kind in ("lingdeployments", "lingslots")}


@pytest.fixture(scope="module")
def log(cluster: Cluster) -> Path:
    path = cluster.kubeconfig.parent / "log/audit.log"
    if not path.exists():
        pytest.skip("the cluster's API server writes no audit log that can be read here")
    return path


def logged(log: Path) -> Iterator[dict[str, Any]]:
    """Every answered request of the run."""
    with log.open() as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line, while it is being written
            if entry["stage"] == "ResponseComplete":
                yield entry


def users(log: Path) -> set[str]:
    return {entry["user"]["username"] for entry in logged(log)}


def bindings(log: Path, role: str) -> list[tuple[str, bool]]:
    """When the role's binding was made and when it was taken away: a removed installation lives on for a moment."""
    found = []
    for entry in logged(log):
        about = (entry.get("objectRef", {}).get("resource"), entry.get("objectRef", {}).get("name"))
        if about == ("clusterrolebindings", role) and entry["verb"] in ("create", "patch", "update", "delete"):
            found.append((entry["requestReceivedTimestamp"], entry["verb"] != "delete"))
    return sorted(found)


def bound(changes: list[tuple[str, bool]], when: str) -> bool:
    return [is_bound for at, is_bound in changes if at <= when][-1:] != [False]


def entries(log: Path, role: str) -> Iterator[tuple[Right, bool]]:
    """What every request of the role's account needed, and whether it was refused although the account had the role.

    Refused is what the authorizer says (not: an ending namespace). A request that was let wait and given up never came
    so far. A server-side apply that made its object (201) needed the right to create, too.
    """
    changes = bindings(log, role)
    for entry in logged(log):
        decision = entry.get("annotations", {}).get("authorization.k8s.io/decision")
        if entry["user"]["username"] != ACCOUNTS[role] or decision is None:
            continue
        about = entry.get("objectRef", {})
        resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
        refused = decision == "forbid"
        if refused and not bound(changes, entry["requestReceivedTimestamp"]):
            continue
        group = about.get("apiGroup", "")
        yield (group, resource, entry["verb"]), refused
        if entry["verb"] == "patch" and entry.get("responseStatus", {}).get("code") == 201:
            yield (group, resource, "create"), refused


def granted(role: str) -> set[Right]:
    rules = chart.find(chart.render(), "ClusterRole", role)["rules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def owned(kind: str, namespace: str) -> dict[str, Any]:
    """A ControllerRevision whose owner of that kind waits for it when it is deleted in the foreground."""
    owner = {"apiVersion": "ling.dev/v1alpha1", "kind": kind, "name": "x", "uid": "x", "blockOwnerDeletion": True}
    meta = {"name": "x", "namespace": namespace, "ownerReferences": [owner]}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta, "revision": 1, "data": {}}


@pytest.mark.parametrize("kind", ["LingDeployment", "LingSlot"])
def test_an_owner_that_waits_needs_the_right_to_its_finalizers(trial: Trial, kind: str) -> None:
    role, person = f"{trial.name}-makes-revisions", f"{trial.name}-person"
    trial.kubectl("create", "clusterrole", role, "--verb=create,patch", "--resource=controllerrevisions.apps")
    trial.kubectl("create", "rolebinding", "makes", f"--clusterrole={role}", f"--user={person}")
    make = ("create", "--dry-run=server", "-f", "-")
    body = json.dumps(owned(kind, trial.name))
    try:
        trial.kubectl(*make, f"--as={ACCOUNTS['ling-operator']}", stdin=body)
        with pytest.raises(ClusterError, match="cannot set blockOwnerDeletion"):
            trial.kubectl(*make, f"--as={person}", stdin=body)
    finally:
        trial.kubectl("delete", "clusterrole", role)


def whole_suite(session: pytest.Session) -> bool:
    """Whether every file of cluster tests takes part."""
    files = set(Path(__file__).parent.glob("test_cluster_*.py"))
    return files <= {item.path for item in session.items}


@pytest.mark.parametrize("role", ACCOUNTS)
def test_nobody_is_refused_a_right(log: Path, role: str) -> None:
    refused = {right for right, refusal in entries(log, role) if refusal}
    assert not refused, "granted too little"


def test_nobody_else_of_ours_asks_the_api_server(log: Path) -> None:
    """Slot pods, engine pods, clients, the chart's own test: none has a token of its namespace's account."""
    accounts = re.compile(f"system:serviceaccount:(({SYSTEM}|{AGENTS}):.*|{PREFIX}[^:]*:default)")
    assert {user for user in users(log) if accounts.fullmatch(user)} <= set(ACCOUNTS.values())


@pytest.mark.parametrize("role", ACCOUNTS)
def test_what_is_used_is_granted_and_what_is_granted_is_used(
    request: pytest.FixtureRequest, log: Path, role: str
) -> None:
    used = {right for right, refusal in entries(log, role) if not refusal}
    assert used, "the audit log does not know the account"
    assert used <= granted(role)
    if not whole_suite(request.session):
        pytest.skip("only some of the cluster suite ran: that nothing is granted in vain cannot be told")
    vain = granted(role) - used - ASKED_BY_ADMISSION
    assert not vain, f"granted too much: {sorted(vain)}"
