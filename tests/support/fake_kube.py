"""An API server, its garbage collector and nodes in memory, for tests of the operator that need no process.

`FakeKube` answers as `ling_operator.kube.Kube` does. `tick` lets scheduler, kubelet, garbage collector and agent do one
round of their work; what kubelet and agent of a dead node would do is not done. Time is a number that tests move.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.support.fake_node import AGENT_NAMESPACE, Slot

from ling_operator.kube import Conflict, Missing

type Object = dict[str, Any]

NAMESPACE = "default"
CLASSES = ("gpu.example.com", "gpu.nvidia.com")  # device classes that exist
_SUCCEEDED = {"phase": "Succeeded"}
CORDON = "node.kubernetes.io/unschedulable"


def controller(body: Object) -> str:
    """The uid of the controlling owner, or ""."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((one["uid"] for one in owners if one.get("controller")), "")


def device_class(name: str) -> Object:
    selectors = [{"cel": {"expression": "device.driver == 'test.example.com'"}}]
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"selectors": selectors}}


class Died(BaseException):
    """The operator ended hard right after a write."""


@dataclass
class Machine:
    """A node: whether it is there and alive, cordoned since when, what labels and how many devices it has."""

    ready: bool = True
    exists: bool = True
    cordoned: float = 0.0
    devices: int = 1
    engines: int = 100  # pods of engines that find room
    memory: int = 64 << 30  # bytes for slot pods
    labels: dict[str, str] = field(default_factory=dict)


class FakeKube:
    """Objects by kind and name of one namespace. `die_after`: raise Died right after that many writes."""

    def __init__(self, nodes: int = 1) -> None:
        self.machines = {f"node-{n}": Machine() for n in range(1, nodes + 1)}
        self.now = 1_700_000_000.0
        self.objects: dict[tuple[str, str], Object] = {}
        self.agents: dict[str, Slot] = {}
        self.created: list[tuple[str, str]] = []
        self.agent_ready = True
        self.tight = False  # no slot has room for two servers
        self.taken_by_others: dict[str, int] = {}  # devices of a node that somebody else's claims have
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
        if kind == "Node":
            return self.node(name)
        if kind == "DeviceClass":
            return device_class(name) if name in CLASSES else None
        return self.objects.get((kind, name))

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        if namespace == AGENT_NAMESPACE:
            return [self.agent_pod(name) for name in self.machines]
        if kind == "Node":
            return [node for name in self.machines if (node := self.node(name)) is not None]
        if kind == "ResourceSlice":
            return [self.slice(name) for name in self.machines]
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
            live["metadata"]["labels"] |= body["metadata"].get("labels") or {}
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

    def agent_pod(self, node: str) -> Object:
        ready = str(self.agent_ready and self.machines[node].ready)
        meta = {"name": f"agent-{node}", "namespace": AGENT_NAMESPACE, "uid": f"uid-agent-{node}"}
        return {
            "metadata": {**meta, "labels": {"ling.dev/component": "agent"}},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }

    def slice(self, name: str) -> Object:
        """The devices of a node, as its DRA driver publishes them."""
        devices = [{"name": f"device-{number:02d}"} for number in range(self.machines[name].devices)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "test.example.com", "nodeName": name, "pool": pool, "devices": devices}
        return {"metadata": {"name": f"{name}-slice", "uid": f"uid-{name}-slice", "resourceVersion": "1"}, "spec": spec}

    def node(self, name: str) -> Object | None:
        machine = self.machines.get(name)
        if machine is None or not machine.exists:
            return None
        stamp = datetime.fromtimestamp(int(machine.cordoned), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        taint = {"key": CORDON, "effect": "NoSchedule", "timeAdded": stamp}
        return {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"unschedulable": True, "taints": [taint]} if machine.cordoned else {},
            "status": {
                "conditions": [{"type": "Ready", "status": str(machine.ready)}],
                "allocatable": {"cpu": "64", "memory": str(machine.memory), "pods": "110"},
            },
        }

    def remove(self, kind: str, name: str) -> None:
        """A graceful deletion: pods and slots stay until the node and the collector are done."""
        live = self.objects[kind, name]
        if kind in ("Pod", "LingSlot", "ResourceClaim"):
            live["metadata"].setdefault("deletionTimestamp", self.time())
        else:
            del self.objects[kind, name]

    # -- scheduler, kubelet, collector, agent
    def tick(self) -> None:
        """One round of everybody else's work."""
        self._collect()
        for pod in self.of_kind("Pod"):
            self._run_pod(pod)
        self._claims()
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
            of_slot = (*self.of_kind("Pod"), *self.of_kind("ResourceClaim"))
            mine = [one for one in of_slot if controller(one) == slot["metadata"]["uid"]]
            if "deletionTimestamp" in slot["metadata"] and not mine:
                del self.objects["LingSlot", slot["metadata"]["name"]]

    def _node_of(self, pod: Object) -> str:
        """Where the scheduler would put a pod, "" if nowhere."""
        spec = pod["spec"]
        affinity = (spec.get("affinity") or {}).get("nodeAffinity")
        terms = affinity and affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        fields = terms[0]["matchFields"] if terms else []
        names = [name for name in self.machines if all(_named(one, name) for one in fields)]
        tolerations = spec.get("tolerations") or ()
        everything = any(one == {"operator": "Exists"} for one in tolerations)
        tolerates = everything or any(one.get("key") == CORDON for one in tolerations)
        claim = next((one["resourceClaimName"] for one in spec.get("resourceClaims") or ()), "")
        good = [
            name
            for name in names
            if (machine := self.machines[name]).exists and (machine.ready or everything)
            if tolerates or not machine.cordoned
            if _selected(pod, machine) and self._claim_fits(claim, name)
            if self._memory_fits(pod, name) and (_is_slot(pod) or self._engines_on(name) < machine.engines)
        ]
        return min(good, key=lambda name: (self._slots_on(name), name), default="")

    def _refusal(self, pod: Object) -> str:
        """Why no node takes a pod, in the scheduler's words."""
        machines, count = self.machines, len(self.machines)
        claims = [self.objects.get(("ResourceClaim", one["resourceClaimName"])) for one in _claims_of(pod)]
        asked = [one["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] for one in claims if one]
        unknown = [one for one in asked if one not in CLASSES]
        if unknown:
            return f"request gpu: device class {unknown[0]} does not exist"
        if not any(_selected(pod, one) for one in machines.values()):
            return f"{count} node(s) didn't match Pod's node affinity/selector"
        if not any(self._memory_fits(pod, name) for name in machines):
            return f"{count} Insufficient memory"
        return "cannot allocate all claims"

    def _memory_fits(self, pod: Object, node: str) -> bool:
        """Slot pods alone ask for memory."""
        there = [one for one in self.of_kind("Pod") if one["spec"].get("nodeName") == node]
        return sum(map(_memory, [*there, pod])) <= self.machines[node].memory

    def _engines_on(self, node: str) -> int:
        return sum(one["spec"].get("nodeName") == node and not _is_slot(one) for one in self.of_kind("Pod"))

    def _slots_on(self, node: str) -> int:
        return sum(one["spec"].get("nodeName") == node and _is_slot(one) for one in self.of_kind("Pod"))

    def _claim_fits(self, claim: str, node: str) -> bool:
        if not claim:
            return True
        found = self.objects.get(("ResourceClaim", claim))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return False
        if found["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] not in CLASSES:
            return False
        pool = _pool(found)
        taken = self.taken_by_others.get(node, 0)
        taken += sum(_count(one) for one in self.of_kind("ResourceClaim") if _pool(one) == node)
        return pool == node or (not pool and taken + _count(found) <= self.machines[node].devices)

    def _schedule(self, pod: Object) -> None:
        node = self._node_of(pod)
        if not node:
            if not pod["status"].get("conditions"):
                message = f"0/{len(self.machines)} nodes are available: {self._refusal(pod)}"
                waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                pod["status"]["conditions"] = [{**waits, "lastTransitionTime": self.time()}]
                self._touch(pod)
            return
        pod["spec"]["nodeName"] = node
        pod["status"] = {"phase": "Pending"}
        for one in pod["spec"].get("resourceClaims") or ():
            claim = self.objects["ResourceClaim", one["resourceClaimName"]]
            results = [{"request": "gpu", "driver": "test", "pool": node, "device": "device-00"}]
            claim["status"] = {"allocation": {"devices": {"results": results}}}

    def _claims(self) -> None:
        """A claim that no pod holds is deallocated, and goes if it was told to."""
        held = {
            one["resourceClaimName"]
            for pod in self.of_kind("Pod")
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Failed", "Succeeded")
            for one in pod["spec"].get("resourceClaims") or ()
        }
        for claim in self.of_kind("ResourceClaim"):
            if claim["metadata"]["name"] not in held:
                claim.pop("status", None)
                if "deletionTimestamp" in claim["metadata"]:
                    del self.objects["ResourceClaim", claim["metadata"]["name"]]

    def _alive(self, pod: Object) -> bool:
        machine = self.machines.get(pod["spec"].get("nodeName", ""))
        return machine is None or (machine.ready and machine.exists)

    def _run_pod(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        status = pod.setdefault("status", {"phase": "Pending"})
        gone = "nodeName" in pod["spec"] and not self.machines[pod["spec"]["nodeName"]].exists
        if gone or ("deletionTimestamp" in pod["metadata"] and self._alive(pod)):
            del self.objects["Pod", pod["metadata"]["name"]]
        elif "nodeName" not in pod["spec"]:
            self._schedule(pod)
        elif not self._alive(pod):
            return
        elif status["phase"] == "Pending" and "missing" in container["image"]:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"no such image {container['image']}"}}
            pod["status"] = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
        elif status["phase"] == "Pending":
            pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        elif status["phase"] == "Running" and container.get("args", [""])[0] in ("fill", "check"):
            pod["status"] = _ended(container)

    def _run_slot(self, slot: Object) -> None:
        uid = slot["metadata"]["uid"]
        mine = [one for one in self.of_kind("Pod") if controller(one) == uid]
        if not self.agent_ready or not all(map(self._alive, mine)):
            return
        mine = [one for one in mine if one["status"]["phase"] in ("Running", "Succeeded")]
        keeper = next((one for one in mine if _is_slot(one)), None)
        if uid not in self.agents and keeper is None:
            return
        engines = {
            one["metadata"]["name"]: one
            for one in mine
            if not _is_slot(one) and "deletionTimestamp" not in one["metadata"]
            if one["metadata"]["labels"]["ling.dev/revision"] in slot["spec"]["revisions"]
            if one["status"]["phase"] == "Running" and one["spec"]["containers"][0]["args"][0] == "run"
        }
        state = self.agents.setdefault(uid, Slot(clock=self.time))
        if keeper is not None:
            state.node = keeper["spec"]["nodeName"]
        state.tight = self.tight
        state.choose(slot["spec"], engines)
        self._status(slot, state.status(engines, slot["metadata"]["generation"]))
        self._touch(slot)

    # -- questions
    def serving(self) -> list[str]:
        """Slots that a client of the Service reaches and that answer."""
        pods = {
            controller(one): one
            for one in self.of_kind("Pod")
            if "ling.dev/serving" in one["metadata"]["labels"] and self._alive(one)
        }
        slots = {one["metadata"]["uid"]: one["metadata"]["name"] for one in self.of_kind("LingSlot")}
        return [name for uid, name in slots.items() if uid in pods and (state := self.agents.get(uid)) and state.active]


def _ended(container: Object) -> Object:
    """The status of a pod that does one thing and ends. SGLang does not know the flag `--nonsense`."""
    wrong = next((one for one in container["args"] if "--nonsense" in one), "")
    ended = {"exitCode": 2, "message": f"ling-engine: {wrong}: SGLang knows no such flag"}
    return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]} if wrong else _SUCCEEDED


def _named(requirement: Object, node: str) -> bool:
    """Whether a node of that name meets what a pod's affinity says of names."""
    return (node in requirement["values"]) is (requirement["operator"] == "In")


def _is_slot(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"]["ling.dev/component"] == "slot")


def _claims_of(pod: Object) -> list[Object]:
    return list(pod["spec"].get("resourceClaims") or ())


def _memory(pod: Object) -> int:
    """What a slot pod asks for, in bytes."""
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["memory"]) if _is_slot(pod) else 0


def _selected(pod: Object, machine: Machine) -> bool:
    """Whether the node has the labels that the pod selects."""
    return (pod["spec"].get("nodeSelector") or {}).items() <= machine.labels.items()


def _count(claim: Object) -> int:
    return int(claim["spec"]["devices"]["requests"][0]["exactly"]["count"])


def _pool(claim: Object) -> str:
    """The node of an allocated claim, "" of another."""
    allocation = (claim.get("status") or {}).get("allocation") or {"devices": {"results": [{"pool": ""}]}}
    return str(allocation["devices"]["results"][0]["pool"])
