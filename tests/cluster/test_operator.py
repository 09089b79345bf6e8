"""The operator against a real API server and its controllers; kubelet, scheduler and agent are a torch-free stand-in.

Three ways: in this process, dying after each of its writes in turn; as the real process, dying for real; and as the
real process with nothing but the rights that its manifest gives it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from hack.ports import free_port
from tests.support import apiserver, chart
from tests.support.fake_node import FakeNode

from ling_operator import kube as kubes
from ling_operator.metrics import Metrics
from ling_operator.reconcile import Reconciler
from ling_operator.settings import Images, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

SETTINGS = Settings(images=Images(nodeagent="agent:1", reference="engine:1", sglang="sglang:1"))
LING = "/apis/ling.dev/v1alpha1"
NUMBERS = itertools.count(1)

type Object = dict[str, Any]


@pytest.fixture(scope="module")
def plane() -> apiserver.ControlPlane:
    if apiserver.programs() is None:
        pytest.skip("the control plane's programs are not built: hack/cluster/build")
    return apiserver.shared()


@pytest.fixture(scope="module")
def node(plane: apiserver.ControlPlane) -> Iterator[FakeNode]:
    with FakeNode(plane.url, apiserver.TOKEN, str(plane.folder / "server.crt")) as running:
        yield running
    assert running.errors == []


def spec(*, replicas: int = 1, context: int = 4096, **engine: Any) -> Object:
    return {
        "model": {"source": "host:///tiny"},
        "engine": {"contextLength": context, **engine},
        "weightCache": {"memory": "1Gi"},
        "replicas": replicas,
    }


class Place:
    """A namespace with one LingDeployment, seen as a person sees it. A number makes its name one that never was."""

    def __init__(self, node: FakeNode, name: str) -> None:
        self.node, self.namespace = node, f"{name}-{next(NUMBERS)}"
        namespace = self.namespace
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        node.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})

    def put(self, wanted: Object | None) -> None:
        """Apply the spec, or delete the object (None)."""
        path = f"{LING}/namespaces/{self.namespace}/lingdeployments/tiny"
        if wanted is None:
            self.node.call("DELETE", path)
            return
        body = {
            "apiVersion": "ling.dev/v1alpha1",
            "kind": "LingDeployment",
            "metadata": {"name": "tiny"},
            "spec": wanted,
        }
        query = {"fieldManager": "person", "force": "true"}
        assert self.node.call("PATCH", path, body, "application/apply-patch+yaml", **query)

    def list(self, path: str) -> list[Object]:
        base, plural = path.rsplit("/", 1)
        return list(self.node.call("GET", f"{base}/namespaces/{self.namespace}/{plural}").get("items") or ())

    def pods(self) -> list[Object]:
        return self.list("/api/v1/pods")

    def deployment(self) -> Object:
        return self.node.call("GET", f"{LING}/namespaces/{self.namespace}/lingdeployments/tiny")

    def settled(self, wanted: Object | None) -> bool:
        """Whether the world is as the spec wants it, the status included."""
        if wanted is None:
            paths = ("/api/v1/pods", f"{LING}/lingslots", "/api/v1/services", "/apis/apps/v1/controllerrevisions")
            return not any(self.list(path) for path in paths)
        body = self.deployment()
        if not body:
            return False
        status = body.get("status") or {}
        reasons = {one["type"]: one["reason"] for one in status.get("conditions") or ()}
        return (
            status.get("observedGeneration") == body["metadata"]["generation"]
            and reasons.get("Progressing") == "Complete"
            and status.get("readyReplicas") == wanted["replicas"]
            and len(self.pods()) == 2 * wanted["replicas"]
            and self._calm(status["updateRevision"], wanted["replicas"])
        )

    def _calm(self, revision: str, replicas: int) -> bool:
        slots = self.list(f"{LING}/lingslots")
        serving = [one for one in self.pods() if one["metadata"]["labels"].get("ling.dev/serving") == "true"]
        return (
            len(slots) == replicas == len(serving)
            and all(one["spec"]["revisions"] == [revision] for one in slots)
            and all(f"-{revision}-" in (one.get("status") or {"active": {"pod": ""}})["active"]["pod"] for one in slots)
        )


STORIES: dict[str, list[Object | None]] = {
    "apply": [spec()],
    "edit": [spec(), spec(context=8192)],
    "scale": [spec(), spec(replicas=0), spec()],
    "delete": [spec(), None],
}


class Death(BaseException):
    """What the process's end is to a look that goes on."""


def die(_code: int) -> None:
    raise Death


async def wait_until(what: str, true: Callable[[], bool], life: Life, seconds: float = 480) -> None:
    """Let the operator live until it has nothing to do and it is true."""
    deadline = time.monotonic() + seconds
    while await life.look() or not await asyncio.to_thread(true):
        assert time.monotonic() < deadline, f"timed out: {what}"


class Life:
    """One operator's life in this process; the next one knows nothing of it."""

    def __init__(self, plane: apiserver.ControlPlane, place: Place) -> None:
        self.plane, self.key = plane, (place.namespace, "tiny")
        self.kube: kubes.Kube | None = None

    async def begin(self, exit_after_writes: int) -> None:
        self.kube = kubes.Kube(await kubes.connect(), exit_after_writes=exit_after_writes, die=die)
        self.reconciler = Reconciler(self.kube, SETTINGS, Metrics(lambda: 0))

    async def end(self) -> None:
        assert self.kube is not None
        await self.kube.close()

    @property
    def writes(self) -> int:
        assert self.kube is not None
        return self.kube.writes

    async def look(self) -> bool:
        """One look; whether it did something. If not, the others get a moment."""
        try:
            if await self.reconciler.reconcile(self.key) == 0.0:
                return True
        except kubes.ApiError as error:
            if error.status not in (0, 404, 409, 429) and error.status < 500:
                raise  # what the process, too, tries again later is no failure
        await asyncio.sleep(0.3)
        return False


async def tell(plane: apiserver.ControlPlane, place: Place, story: list[Object | None], k: int) -> list[int]:
    """Play a story with an operator that dies after its k-th write (0: never); its writes at each chapter's end."""
    life = Life(plane, place)
    await life.begin(k)
    writes = []
    for wanted in story:
        await asyncio.to_thread(place.put, wanted)
        while True:
            try:
                await wait_until(f"{place.namespace}: {wanted}", lambda wanted=wanted: place.settled(wanted), life)
                break
            except Death:
                await life.end()
                await life.begin(0)
        writes.append(life.writes)
    await life.end()
    place.put(None)
    return writes


def deaths_of(story: list[Object | None], writes: list[int]) -> list[int]:
    """Every k. A story that goes on after `apply` begins with that story's last k: the earlier ones were tried there.

    Of the long ones the first two, each third and the last, unless LING_EVERY_WRITE=1 asks for all.
    """
    if len(story) == 1:
        return list(range(1, writes[-1] + 1))
    every = list(range(writes[0], writes[-1] + 1))
    if os.environ.get("LING_EVERY_WRITE") == "1":
        return every
    return sorted({every[0], *every[1::3], every[-1]})


@pytest.mark.parametrize("name", list(STORIES))
def test_death_after_each_write_ends_in_the_same_state(
    plane: apiserver.ControlPlane, node: FakeNode, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    calm = Place(node, f"{name}-calm")
    gate = asyncio.Semaphore(12)

    async def one(k: int) -> tuple[int, list[str]]:
        async with gate:
            place = Place(node, f"{name}-{k}")
            await tell(plane, place, STORIES[name], k)
            return k, node.pods_of(place.namespace)

    async def all_of_them() -> dict[int, list[str]]:
        writes = await tell(plane, calm, STORIES[name], 0)
        assert writes[0] >= 8
        return dict(await asyncio.gather(*(one(k) for k in deaths_of(STORIES[name], writes))))

    found = asyncio.run(all_of_them())
    made = node.pods_of(calm.namespace)
    assert {k: pods for k, pods in found.items() if pods != made} == {}


class Process:
    """The real operator as a child process."""

    def __init__(self, kubeconfig: Path, log: Path, *, exit_after_writes: int = 0) -> None:
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "LING_NODEAGENT_IMAGE": "agent:1",
            "LING_ENGINE_REFERENCE_IMAGE": "engine:1",
            "LING_ENGINE_SGLANG_IMAGE": "sglang:1",
        }
        if exit_after_writes:
            environment["LING_TEST_EXIT_AFTER_WRITES"] = str(exit_after_writes)
        self.port = free_port()
        self.log = log
        with log.open("ab") as output:
            command = [sys.executable, "-m", "ling_operator", "run", "--port", str(self.port)]
            self.child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    def get(self, path: str) -> str:
        """What it answers, whatever the status; "" while it does not listen yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            return str(refused.read().decode())
        except urllib.error.URLError:
            return ""


def wait(what: str, true: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)


def rights_of_the_manifest(plane: apiserver.ControlPlane, folder: Path) -> Path:
    """A kubeconfig of the operator's ServiceAccount as the chart makes it, with the rights given there."""
    wanted = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    objects: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ling-system"}}]
    objects += [one for one in chart.render() if one["kind"] in wanted and "agent" not in one["metadata"]["name"]]
    plane.kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))
    user = "system:serviceaccount:ling-system:ling-operator"
    plane.wait_allowed(user, "list", "lingdeployments.ling.dev", "--all-namespaces")
    token = plane.kubectl("-n", "ling-system", "create", "token", "ling-operator").stdout.strip()
    path = folder / "operator.kubeconfig"
    path.write_text(plane.kubeconfig.read_text().replace(apiserver.TOKEN, token))
    return path


def test_the_process_lives_a_life_with_the_rights_of_its_manifest(
    plane: apiserver.ControlPlane, node: FakeNode, tmp_path: Path
) -> None:
    place = Place(node, "life")
    kubeconfig = rights_of_the_manifest(plane, tmp_path)
    with Process(kubeconfig, tmp_path / "log") as process:
        for wanted in (spec(), spec(context=8192), spec(context=8192, replicas=2), spec(context=8192, replicas=0)):
            place.put(wanted)
            wait(f"{wanted}", lambda wanted=wanted: place.settled(wanted))
        user = place.deployment()["metadata"]
        assert "finalizers" not in user
        assert not user.get("annotations"), "nobody writes annotations on a user's object"
        assert {one["manager"] for one in user["managedFields"]} == {"person", "ling-operator"}
        wait("ready", lambda: process.get("/readyz") == "ok\n")
        assert process.get("/livez") == "ok\n"
        mine = f'namespace="{place.namespace}"'
        assert f'ling_operator_deployment_condition{{condition="Ready",name="tiny",{mine}' in process.get("/metrics")
        place.put(None)
        wait("everything is gone", lambda: place.settled(None))
        wait("its series are gone", lambda: mine not in process.get("/metrics"))
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(120) == 0
    said = process.log.read_text()
    assert "forbidden" not in said.lower()
    assert "Traceback" not in said


@pytest.mark.parametrize("k", [1, 5, 9])
def test_the_process_dies_for_real_after_a_write_and_the_next_goes_on(
    plane: apiserver.ControlPlane, node: FakeNode, tmp_path: Path, k: int
) -> None:
    place = Place(node, f"real-{k}")
    place.put(spec())
    with Process(plane.kubeconfig, tmp_path / "log", exit_after_writes=k) as process:
        assert process.child.wait(120) == kubes.EXIT_AFTER_WRITE
    with Process(plane.kubeconfig, tmp_path / "log"):
        wait("the next one goes on", lambda: place.settled(spec()))
    assert len(node.pods_of(place.namespace)) == 2
    place.put(None)


def test_a_broken_image_is_given_up_and_a_lost_agent_is_told(
    plane: apiserver.ControlPlane, node: FakeNode, tmp_path: Path
) -> None:
    place = Place(node, "broken")
    place.put(spec())
    with Process(plane.kubeconfig, tmp_path / "log"):
        wait("it serves", lambda: place.settled(spec()))
        place.put({**spec(image="missing:1"), "rollout": {"progressDeadlineSeconds": 5}})

        def condition(kind: str) -> Object:
            conditions = (place.deployment().get("status") or {}).get("conditions") or ()
            return next((one for one in conditions if one["type"] == kind), {"reason": "", "status": ""})

        wait("it is given up", lambda: condition("Progressing")["reason"] == "ProgressDeadlineExceeded")
        assert "ImagePullBackOff" in condition("Progressing")["message"]
        wait("the broken pod is gone", lambda: len(place.pods()) == 2)
        assert condition("Ready")["status"] == "True"
        node.agent_ready(False)
        try:
            wait("the lost agent is told", lambda: condition("Degraded")["reason"] == "AgentLost")
            assert condition("Ready")["status"] == "True"
        finally:
            node.agent_ready(True)
        wait("it is back", lambda: condition("Degraded")["status"] == "False")
    events = {one["reason"] for one in place.list("/api/v1/events")}
    assert {"Serving", "RolloutCompleted", "ProgressDeadlineExceeded", "AgentLost", "Recovered"} <= events
    place.put(None)
