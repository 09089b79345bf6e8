"""A fake cluster and an operator in it, for stories and for the planner's property test."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from tests.support.fake_kube import CLASSES, NAMESPACE, FakeKube, controller, device_class

from ling_operator.kube import Conflict, Missing
from ling_operator.metrics import Metrics
from ling_operator.mirror import KINDS, Mirror
from ling_operator.reconcile import Reconciler
from ling_operator.settings import Images, Settings

SETTINGS = Settings(images=Images(nodeagent="agent:1", reference="engine:1", sglang="sglang:1"))
KEY = (NAMESPACE, "tiny")


def spec(
    *, image: str = "", replicas: int = 1, context: int = 4096, memory: str = "1Gi", **more: Any
) -> dict[str, Any]:
    engine = {"contextLength": context, **({"image": image} if image else {})}
    return {
        "model": {"source": "host:///tiny"},
        "engine": engine,
        "weightCache": {"memory": memory},
        "replicas": replicas,
        "rollout": {"progressDeadlineSeconds": 20},
        "service": {"holdSeconds": 5},
        **more,
    }


class Wire:
    """The fake API server as a client sees it: every answer is a copy, and there are no nodes but by name."""

    def __init__(self, kube: FakeKube) -> None:
        self._kube = kube

    async def get(self, *args: Any) -> Any:
        return copy.deepcopy(await self._kube.get(*args))

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        return copy.deepcopy(seen_by_watches(self._kube, kind))

    async def create(self, body: dict[str, Any]) -> Any:
        return copy.deepcopy(await self._kube.create(body))

    async def apply(self, body: dict[str, Any], subresource: str = "") -> Any:
        return copy.deepcopy(await self._kube.apply(body, subresource))

    async def label(self, kind: str, namespace: str, name: str, uid: str, labels: Any) -> Any:
        await self._kube.label(kind, namespace, name, uid, labels)
        return copy.deepcopy(self._kube.objects.get((kind, name)))

    async def delete(self, kind: str, namespace: str, name: str, uid: str, **how: Any) -> Any:
        await self._kube.delete(kind, namespace, name, uid, **how)
        return copy.deepcopy(self._kube.objects.get((kind, name), {"kind": "Status"}))


def seen_by_watches(kube: FakeKube, kind: str) -> list[dict[str, Any]]:
    """All objects of a kind that have the label by which it is watched, as a watch or a list tells them."""
    if kind == "Node":
        return [node for name in kube.machines if (node := kube.node(name)) is not None]
    if kind == "ResourceSlice":
        return [kube.slice(name) for name in kube.machines]
    if kind == "DeviceClass":
        return [device_class(name) for name in CLASSES]
    agents = [kube.agent_pod(name) for name in kube.machines] if kind == "Pod" else []
    watched = [one for one in kube.of_kind(kind) if not KINDS[kind] or KINDS[kind] in one["metadata"]["labels"]]
    return [*watched, *agents]


class World:
    """A fake cluster and an operator that may be restarted at any time.

    `late`: the operator sees the world through its mirror, and everything that others did one look later.
    """

    def __init__(self, nodes: int = 1, *, late: bool = False) -> None:
        self.kube = FakeKube(nodes)
        self.late = late
        self.restart()

    def restart(self) -> None:
        """A new operator process: it knows nothing."""
        self.metrics = Metrics(lambda: 0)
        self.mirror = Mirror(Wire(self.kube))  # type: ignore[arg-type]
        self._told: dict[str, list[dict[str, Any]]] = {}
        if self.late:
            asyncio.run(self.mirror.sync())
        self.verbs: Any = self.mirror if self.late else self.kube
        self.reconciler = Reconciler(self.verbs, SETTINGS, self.metrics, lambda: self.kube.now)

    def look(self) -> bool:
        """One reconcile; whether it wrote anything. One that met a conflict looks again later, as the process does."""
        before = self.kube.writes
        if self.late:
            self._tell()
        try:
            asyncio.run(self.reconciler.reconcile(KEY))
        except (Conflict, Missing):
            if not self.late:
                raise
        return self.kube.writes != before

    def _tell(self) -> None:
        """The watches tell what was true at the look before."""
        for kind, bodies in self._told.items():
            there = {body["metadata"]["uid"] for body in seen_by_watches(self.kube, kind)}
            for body in bodies:
                self.mirror.saw(kind, body)
                if body["metadata"]["uid"] not in there:
                    self.mirror.saw_gone(kind, body)
        self._told = {kind: copy.deepcopy(seen_by_watches(self.kube, kind)) for kind in KINDS}

    def settle(self, rounds: int = 400) -> None:
        """Work until nobody has anything to do for a while."""
        calm = 0
        for _ in range(rounds):
            wrote = self.look()
            before = [one["metadata"]["resourceVersion"] for one in self.kube.of_kind("Pod")]
            self.kube.tick()
            after = [one["metadata"]["resourceVersion"] for one in self.kube.of_kind("Pod")]
            calm = calm + 1 if not wrote and before == after else 0
            if calm > 3:
                return
        raise AssertionError(f"not calm after {rounds} rounds: {self.condition('Progressing')}")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.kube.objects["LingDeployment", "tiny"].get("status") or {}
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(one for one in self.status()["conditions"] if one["type"] == kind)
        return found["status"], found["reason"]

    def pods(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.kube.of_kind("Pod"))

    def events(self) -> list[str]:
        return [one["reason"] for one in self.kube.of_kind("Event")]

    def engine_revisions(self) -> set[str]:
        labels = [one["metadata"]["labels"] for one in self.kube.of_kind("Pod")]
        return {one["ling.dev/revision"] for one in labels if "ling.dev/revision" in one}

    def engine_images(self) -> set[str]:
        engines = [one for one in self.kube.of_kind("Pod") if "ling.dev/revision" in one["metadata"]["labels"]]
        return {one["spec"]["containers"][0]["image"] for one in engines}


def started(nodes: int = 1, **more: Any) -> World:
    """A world in which a LingDeployment of that spec serves already."""
    world = World(nodes)
    world.kube.put_deployment("tiny", spec(**more))
    world.settle()
    return world


def as_wanted(world: World, replicas: int, spares: int = 0) -> None:
    """The end state of every story: exactly the slots, pods, claims and revisions that the spec asks for."""
    slots = world.kube.of_kind("LingSlot")
    assert sum(not slot["spec"]["spare"] for slot in slots) == replicas
    assert sum(slot["spec"]["spare"] for slot in slots) == (spares if replicas else 0)
    wanted = world.status()["updateRevision"]
    for slot in slots:
        _as_wanted(world, slot, wanted)
    pods = sum(2 + (0 if slot["spec"]["spare"] else slot["spec"]["standby"]["replicas"]) for slot in slots)
    assert len(world.kube.of_kind("Pod")) == pods
    claimed = [slot for slot in slots if slot["spec"]["gpu"]["allocation"] == "ResourceClaim"]
    assert len(world.kube.of_kind("ResourceClaim")) == len(claimed)
    assert len(world.kube.serving()) == replicas
    assert world.condition("Progressing") == ("True", "Complete")
    assert world.condition("Ready")[0] == str(replicas > 0)
    assert world.condition("UpdateInProgress")[0] == "False"
    assert world.status()["currentRevision"] == wanted


def _as_wanted(world: World, slot: dict[str, Any], wanted: str) -> None:
    mine = [one for one in world.kube.of_kind("Pod") if controller(one) == slot["metadata"]["uid"]]
    engines = 1 if slot["spec"]["spare"] else 1 + slot["spec"]["standby"]["replicas"]
    assert sorted(one["metadata"]["labels"]["ling.dev/component"] for one in mine) == [*["engine"] * engines, "slot"]
    assert slot["spec"]["revision"] == wanted
    assert slot["spec"]["revisions"] == [wanted]
    assert not slot["spec"]["leaving"]
    active = slot["status"]["active"]["pod"]
    assert active == "" if slot["spec"]["spare"] else active.startswith(f"{slot['metadata']['name']}-{wanted}-")
