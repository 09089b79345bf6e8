"""Rights: what the audit log of this run saw each of our accounts do is what the chart grants, neither less nor more.

It runs last (tests/conftest.py). That nothing is granted in vain can be said only when the whole suite has run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hack.cluster.access import AGENTS, SYSTEM
from tests.support import chart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.access import Cluster

pytestmark = pytest.mark.last

Right = tuple[str, str, str]  # API group, resource with subresource, verb
ACCOUNTS = {
    "ling-operator": f"system:serviceaccount:{SYSTEM}:ling-operator",
    "ling-agent": f"system:serviceaccount:{AGENTS}:ling-agent",
}
_APPLIED = ("lingslots", "services", "poddisruptionbudgets")
_MIRRORED = (
    ("ling.dev", "lingdeployments"), ("ling.dev", "lingslots"), ("", "pods"), ("", "services"),
    ("apps", "controllerrevisions"), ("policy", "poddisruptionbudgets"), ("resource.k8s.io", "resourceclaims"),
)  # fmt: skip
# What no request of a run need show, each for its reason.
UNSEEN = {
    # asked of the authorizer by an admission plug-in: to set blockOwnerDeletion
    *(("ling.dev", f"{kind}/finalizers", "update") for kind in ("lingdeployments", "lingslots")),
    # known from watches: asked for only when a write of ours met an object that the watches did not tell of yet
    *((group, kind, "get") for group, kind in _MIRRORED),
    # a server-side apply that makes its object needs the right to create, and is logged as a patch
    *((group, kind, "create") for group, kind in _MIRRORED if kind in _APPLIED),
    ("apps", "controllerrevisions", "delete"),  # beyond the number that is kept
    ("ling.dev", "lingslots/status", "patch"),  # AgentLost: where an agent stays away
}


@pytest.fixture(scope="module")
def log(cluster: Cluster) -> Path:
    path = cluster.kubeconfig.parent / "log/audit.log"
    if not path.exists():
        pytest.skip("the cluster's API server writes no audit log that can be read here")
    return path


def entries(log: Path, user: str) -> Iterator[tuple[Right, bool]]:
    """Every request of the user: what it needed, and whether the authorizer refused it (not: an ending namespace)."""
    for line in log.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last line, while it is being written
        if entry["user"]["username"] != user or entry["stage"] != "ResponseComplete":
            continue
        about = entry.get("objectRef", {})
        resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
        refused = entry["annotations"]["authorization.k8s.io/decision"] == "forbid"
        yield (about.get("apiGroup", ""), resource, entry["verb"]), refused


def granted(role: str) -> set[Right]:
    rules = chart.find(chart.render(), "ClusterRole", role)["rules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def whole_suite(session: pytest.Session) -> bool:
    """Whether every file of cluster tests takes part."""
    files = set(Path(__file__).parent.glob("test_cluster_*.py"))
    return files <= {item.path for item in session.items}


@pytest.mark.parametrize("role", ACCOUNTS)
def test_nobody_is_refused_a_right(log: Path, role: str) -> None:
    refused = {right for right, refusal in entries(log, ACCOUNTS[role]) if refusal}
    assert not refused, "granted too little"


@pytest.mark.parametrize("role", ACCOUNTS)
def test_what_is_used_is_granted_and_what_is_granted_is_used(
    request: pytest.FixtureRequest, log: Path, role: str
) -> None:
    used = {right for right, refusal in entries(log, ACCOUNTS[role]) if not refusal}
    assert used, "the audit log does not know the account"
    assert used <= granted(role)
    if not whole_suite(request.session):
        pytest.skip("only some of the cluster suite ran: that nothing is granted in vain cannot be told")
    vain = granted(role) - used - UNSEEN
    assert not vain, f"granted too much: {sorted(vain)}"
