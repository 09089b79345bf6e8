"""The agent's edges against a real API server and a kubelet's local APIs: the real program, and a real keeper."""

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hack.ports import free_port
from tests.support import apiserver
from tests.support.fake_kubelet import TIMEOUT, FakeKubelet
from tests.support.processes import Child, python, wait_for

from ling_api.errors import AgentUnreachable
from ling_nodeagent import kube
from ling_nodeagent.__main__ import ask

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(apiserver.programs() is None, reason="the control plane is not built: run hack/cluster/build"),
]
NUMBERS = itertools.count(1)
SPEC = {
    "deployment": "chat", "revision": "1a2b3c4d", "revisions": ["1a2b3c4d"], "capacity": 64 << 20,
    "graceSeconds": 5, "holdSeconds": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


class Node:
    """A node: a kubelet's sockets, folders for the agent, and a namespace for what runs there; both have one name."""

    def __init__(self, folder: Path, plane: apiserver.ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self.plane, self.log, self.run_dir = plane, folder / "log", folder / "run"
        self.port, self.probe, self.metrics = free_port(), free_port(), free_port()
        (folder / "plugins").mkdir()
        self.kubelet = FakeKubelet(folder / "plugins")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.call(self.kubelet.start())

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * TIMEOUT)  # it has time-outs of its own

    def close(self) -> None:
        self.call(self.kubelet.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def agent(self, kubeconfig: Path) -> contextlib.AbstractContextManager[Child]:
        flags = {
            "--run-dir": self.run_dir, "--plugin-dir": self.kubelet.folder, "--node": self.namespace,
            "--pod-resources": self.kubelet.pod_resources, "--metrics-port": self.metrics,
        }  # fmt: skip
        args = [str(part) for pair in flags.items() for part in pair]
        return python("-m", "ling_nodeagent", "serve", *args, env={"KUBECONFIG": str(kubeconfig)}, log=self.log)

    def keeper(self, device: str) -> contextlib.AbstractContextManager[Child]:
        env = {
            "LING_RUN": str(self.run_dir / "d" / device), "LING_PORT": str(self.port),
            "LING_PROBE_PORT": str(self.probe), "LING_ADDRESS": "127.0.0.1",
        }  # fmt: skip
        return python("-m", "ling_nodeagent.keeper", env=env, log=self.log)

    def known(self) -> dict[str, Any] | None:
        """What the agent knows; None while it does not answer."""
        with contextlib.suppress(AgentUnreachable):
            return ask(self.run_dir / "status.sock")
        return None

    def callers(self) -> list[str] | None:
        """The devices on which a pod is known; None while the agent does not answer."""
        known = self.known()
        return None if known is None else list(known["callers"])

    def kubectl(self, *args: str) -> str:
        return self.plane.kubectl("-n", self.namespace, *args).stdout

    def listening(self) -> dict[str, Any]:
        """The slot as the agent knows it, once its keeper listens; before, nothing."""
        slot: dict[str, Any] = ((self.known() or {}).get("slots") or {}).get(f"{self.namespace}/chat-0") or {}
        return slot if slot.get("listener") else {}

    def slot(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.kubectl("get", "lslot", "chat-0", "-o", "json"))
        return body

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.slot().get("status") or {}
        return found


@pytest.fixture
def node(tmp_path: Path, plane: apiserver.ControlPlane) -> Iterator[Node]:
    node = Node(tmp_path, plane, f"prod-{next(NUMBERS)}")
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": node.namespace}})
    yield node
    node.close()


def apply(plane: apiserver.ControlPlane, body: dict[str, Any], *flags: str) -> None:
    plane.kubectl("apply", "--server-side", *flags, "-f", "-", stdin=json.dumps(body))


def make_slot(node: Node, **spec: Any) -> str:
    """Make or change the slot chat-0; its uid."""
    body = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "metadata": meta(node), "spec": {**SPEC, **spec}}
    apply(node.plane, body)
    return node.kubectl("get", "lslot", "chat-0", "-o", "jsonpath={.metadata.uid}")


def meta(node: Node) -> dict[str, Any]:
    return {"name": "chat-0", "namespace": node.namespace}


def make_slot_pod(node: Node, slot_uid: str) -> None:
    owner = {
        "apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "name": "chat-0", "uid": slot_uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    labels = {"ling.dev/component": "slot", "ling.dev/slot": "chat-0", "ling.dev/deployment": "chat"}
    spec = {
        "nodeName": node.namespace, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "keeper", "image": "keeper"}],
    }  # fmt: skip
    owned = {**meta(node), "ownerReferences": [owner], "labels": labels}
    apply(node.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": owned, "spec": spec})


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status.get("conditions") or ()}


def test_a_slot_from_its_pods_first_call_to_its_end(node: Node, plane: apiserver.ControlPlane) -> None:
    slot_uid = make_slot(node)
    with node.agent(plane.kubeconfig):
        endpoint = node.call(node.kubelet.registered()).endpoint
        make_slot_pod(node, slot_uid)
        container = node.call(node.kubelet.allocate(endpoint, "d000"))
        assert container.mounts[0].host_path == str(node.run_dir / "d" / "d000")
        node.kubelet.pods = {"d000": (node.namespace, "chat-0")}
        with node.keeper("d000"):
            status = wait_for(lambda: (found := node.status()).get("listener") and found, "status in the API server")
            assert (status["node"], status["observedGeneration"]) == (node.namespace, 1)
            assert set(conditions(status)) == {"WeightsHeld", "Serving", "Recovering", "Degraded"}

            # another writer's condition stays, and an edit of the spec reaches the agent
            lost = {
                "type": "AgentLost", "status": "False", "reason": "AgentReady", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }  # fmt: skip
            other: dict[str, Any] = {"apiVersion": "ling.dev/v1alpha1", "kind": "LingSlot", "metadata": meta(node)}
            other["status"] = {"conditions": [lost]}
            apply(plane, other, "--subresource=status", "--field-manager=ling-operator")
            make_slot(node, capacity=128 << 20)
            status = wait_for(
                lambda: (found := node.status())["capacity"]["total"] == 128 << 20 and found, "the new capacity"
            )
            assert conditions(status)["AgentLost"] == "False"
            assert status["observedGeneration"] == 2

            node.kubectl("delete", "pod", "chat-0", "--grace-period=0", "--force")
            wait_for(lambda: node.callers() == [], "the pod is no caller any more")


def test_an_agent_that_starts_while_the_api_server_is_away_goes_on(
    node: Node, plane: apiserver.ControlPlane, tmp_path: Path
) -> None:
    make_slot_pod(node, make_slot(node))
    node.kubelet.pods = {"d000": (node.namespace, "chat-0")}
    nowhere = tmp_path / "nowhere.kubeconfig"
    nowhere.write_text(plane.kubeconfig.read_text().replace(plane.url, f"https://127.0.0.1:{free_port()}"))
    with contextlib.ExitStack() as stack:
        with node.agent(plane.kubeconfig):
            wait_for(lambda: node.callers() == ["d000"], "the caller is known")
            stack.enter_context(node.keeper("d000"))
            wait_for(node.listening, "the listener")
            wait_for((node.run_dir / "directory.json").exists, "the directory is remembered")
        with node.agent(nowhere):
            slot = wait_for(node.listening, "the next agent knows keeper and slot without the API server")
            assert slot["capacity"]["total"] == 64 << 20
            wait_for(lambda: "event=api-away" in node.log.read_text(), "it says what is away")
        with node.agent(plane.kubeconfig):
            wait_for(lambda: node.listening() and node.status().get("listener"), "and on with the API server")


async def test_a_map_that_becomes_empty_can_be_written(
    node: Node, plane: apiserver.ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    uid = make_slot(node)
    engine = {"pod": "chat-0-1a2b3c4d-0", "uid": "u", "revision": "1a2b3c4d", "role": "active", "phase": "accepting"}
    held = {"set": f"{'ab' * 32}:0", "role": "target", "rank": 0, "bytes": 1, "state": "sealed", "progress": 1.0}
    api = await kube.Api.open()
    try:
        for phases, sets in (({"warm": 1.5}, [held]), ({}, []), ({"warm": 2.5}, [held])):
            status = {"engines": [{**engine, "phases": phases}], "weightSets": sets, "message": ""}
            await api.apply_status(f"{node.namespace}/chat-0", status, uid)
            seen = await asyncio.to_thread(node.status)
            assert seen["engines"][0].get("phases", {}) == phases
            assert [each["set"] for each in seen.get("weightSets", [])] == [each["set"] for each in sets]
    finally:
        await api.close()
