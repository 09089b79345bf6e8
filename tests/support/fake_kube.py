"""An API server, its garbage collector and a node in memory, for tests of the operator that need no process.

`FakeKube` answers as `ling_operator.kube.Kube` does. `tick` lets scheduler, kubelet, garbage collector and agent do one
round of their work. Time is a number that tests move.
"""

from __future__ import annotations

import copy
import itertools
from datetime import UTC, datetime
from typing import Any

from tests.support.fake_node import AGENT_NAMESPACE, NODE, Slot

from ling_operator.kube import Conflict, Missing

type Object = dict[str, Any]

NAMESPACE = "default"


def controller(body: Object) -> str:
    """The uid of the controlling owner, or ""."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((one["uid"] for one in owners if one.get("controller")), "")


class Died(BaseException):
    """The operator ended hard right after a write."""


class FakeKube:
    """Objects by kind and name of one namespace. `die_after`: raise Died right after that many writes."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.objects: dict[tuple[str, str], Object] = {}
        self.agents: dict[str, Slot] = {}
        self.created: list[tuple[str, str]] = []
        self.agent_ready = True
        self.writes = 0
        self.die_after = 0
        self._uids = itertools.count(1)
        self._versions = itertools.count(1)

    # -- what a person does
    def put_deployment(self, name: str, spec: Object) -> None:
        """Apply a LingDeployment; an edit counts up its generation."""
        old = self.objects.get(("LingDeployment", name))
        if old is None:
            self._add({"kind": "LingDeployment", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        elif old["spec"] != spec:
            old["spec"] = copy.deepcopy(spec)
            old["metadata"]["generation"] += 1
            self._touch(old)

    def of_kind(self, kind: str) -> list[Object]:
        return [body for (one, _), body in self.objects.items() if one == kind]

    # -- Kube's interface
    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        if namespace == AGENT_NAMESPACE:
            return [self._agent_pod()]
        label, _, value = selector.partition("=")
        return [one for one in self.of_kind(kind) if one["metadata"]["labels"].get(label) == value]

    async def create(self, body: Object) -> Object:
        if (body["kind"], body["metadata"]["name"]) in self.objects:
            raise Conflict(409, f"{body['metadata']['name']} exists")
        added = self._add(copy.deepcopy(body))
        self._wrote()
        return added

    async def apply(self, body: Object, subresource: str = "") -> Object:
        key = body["kind"], body["metadata"]["name"]
        live = self.objects.get(key)
        uid = body["metadata"].get("uid")
        if live is None and uid:
            raise Conflict(409, "gone") if not subresource else Missing(404, "gone")
        if live is None:
            live = self._add(copy.deepcopy(body))
        elif uid and live["metadata"]["uid"] != uid:
            raise Conflict(409, "another object by now")
        elif subresource:
            self._status(live, copy.deepcopy(body["status"]))
        else:
            live["spec"] = copy.deepcopy(body["spec"])
            live["metadata"]["generation"] += 1
        self._touch(live)
        self._wrote()
        return live

    async def label(self, kind: str, namespace: str, name: str, uid: str, labels: Object) -> None:
        live = self.objects.get((kind, name))
        if live is None:
            return
        if live["metadata"]["uid"] != uid:
            raise Conflict(409, "another object by now")
        for label, value in labels.items():
            live["metadata"]["labels"][label] = value
            if value is None:
                del live["metadata"]["labels"][label]
        self._touch(live)
        self._wrote()

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, *, foreground: bool = False, grace: int | None = None
    ) -> None:
        live = self.objects.get((kind, name))
        if live is None:
            return
        if live["metadata"]["uid"] != uid:
            raise Conflict(409, "another object by now")
        self.remove(kind, name)
        self._wrote()

    # -- inside
    def _wrote(self) -> None:
        self.writes += 1
        if self.writes == self.die_after:
            raise Died

    def _touch(self, body: Object) -> None:
        body["metadata"]["resourceVersion"] = str(next(self._versions))

    def _add(self, body: Object) -> Object:
        meta = body["metadata"]
        meta |= {"uid": f"uid-{next(self._uids)}", "generation": 1, "creationTimestamp": self.time()}
        meta.setdefault("labels", {})
        self._touch(body)
        self.objects[body["kind"], meta["name"]] = body
        self.created.append((body["kind"], meta["name"]))
        return body

    def _status(self, live: Object, status: Object) -> None:
        if live["kind"] == "LingSlot":  # another writer's conditions stay
            kept = {one["type"]: one for one in (live.get("status") or {}).get("conditions") or ()}
            kept |= {one["type"]: one for one in status.get("conditions") or ()}
            live["status"] = {**(live.get("status") or {}), **status, "conditions": list(kept.values())}
        else:
            live["status"] = status

    def time(self) -> str:
        return datetime.fromtimestamp(int(self.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _agent_pod(self) -> Object:
        return {
            "metadata": {"name": "agent", "uid": "agent", "labels": {"ling.dev/component": "agent"}},
            "spec": {"nodeName": NODE},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(self.agent_ready)}]},
        }

    def remove(self, kind: str, name: str) -> None:
        """A graceful deletion: pods and slots stay until the node and the collector are done."""
        live = self.objects[kind, name]
        if kind in ("Pod", "LingSlot"):
            live["metadata"].setdefault("deletionTimestamp", self.time())
        else:
            del self.objects[kind, name]

    # -- scheduler, kubelet, collector, agent
    def tick(self) -> None:
        """One round of everybody else's work."""
        self._collect()
        for pod in self.of_kind("Pod"):
            self._run_pod(pod)
        for slot in self.of_kind("LingSlot"):
            self._run_slot(slot)
        self.now += 0.5

    def _collect(self) -> None:
        uids = {one["metadata"]["uid"] for one in self.objects.values()}
        leaving = {one["metadata"]["uid"] for one in self.of_kind("LingSlot") if "deletionTimestamp" in one["metadata"]}
        for (kind, name), body in list(self.objects.items()):
            owner = controller(body)
            if owner and (owner not in uids or owner in leaving):
                self.remove(kind, name)
        for slot in self.of_kind("LingSlot"):
            mine = [one for one in self.of_kind("Pod") if controller(one) == slot["metadata"]["uid"]]
            if "deletionTimestamp" in slot["metadata"] and not mine:
                del self.objects["LingSlot", slot["metadata"]["name"]]

    def _run_pod(self, pod: Object) -> None:
        image = pod["spec"]["containers"][0]["image"]
        status = pod.setdefault("status", {"phase": "Pending"})
        if "deletionTimestamp" in pod["metadata"]:
            del self.objects["Pod", pod["metadata"]["name"]]
        elif "nodeName" not in pod["spec"]:
            pod["spec"]["nodeName"] = NODE
        elif status["phase"] == "Pending" and "missing" in image:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"no such image {image}"}}
            pod["status"] = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
        elif status["phase"] == "Pending":
            pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def _run_slot(self, slot: Object) -> None:
        uid = slot["metadata"]["uid"]
        mine = [one for one in self.of_kind("Pod") if controller(one) == uid and one["status"]["phase"] == "Running"]
        component = "ling.dev/component"
        if uid not in self.agents and not any(one["metadata"]["labels"][component] == "slot" for one in mine):
            return
        engines = {
            one["metadata"]["name"]: one
            for one in mine
            if one["metadata"]["labels"][component] == "engine" and "deletionTimestamp" not in one["metadata"]
            if one["metadata"]["labels"]["ling.dev/revision"] in slot["spec"]["revisions"]
        }
        state = self.agents.setdefault(uid, Slot(clock=self.time))
        state.choose(slot["spec"], engines)
        self._status(slot, state.status(engines, slot["metadata"]["generation"]))
        self._touch(slot)

    # -- questions
    def serving(self) -> list[str]:
        """Slots that a client of the Service reaches and that answer."""
        pods = {controller(one): one for one in self.of_kind("Pod") if "ling.dev/serving" in one["metadata"]["labels"]}
        slots = {one["metadata"]["uid"]: one["metadata"]["name"] for one in self.of_kind("LingSlot")}
        return [name for uid, name in slots.items() if uid in pods and (state := self.agents.get(uid)) and state.active]
