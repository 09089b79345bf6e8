"""A node that is none: binds pods, lets them run, ends them, and writes LingSlot status as the agent would.

For tests of the operator against a real API server without kubelets. It polls, and writes only what changed. Behaviour
by image: an image that contains `missing` is never pulled; one that contains `dying` passes its check and its server
dies whenever it is let go; one that contains `hanging` does too, and its server lives and never comes up.
"""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT_NAMESPACE = "ling-agents"
NODE = "node-1"
PERIOD = 0.05
PATIENCE = 60.0  # seconds for an API server that is too busy to answer

type Object = dict[str, Any]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _live(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _running(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


@dataclass
class Slot:
    """What the agent remembers of one slot. `tight`: two servers do not fit, so a wish is a swap."""

    active: str = ""
    active_uid: str = ""
    term: int = 0
    deaths: dict[str, int] = field(default_factory=dict)
    serving: tuple[bool, str] | None = None
    clock: Callable[[], str] = _now
    node: str = NODE
    recovering: bool = False
    written: Object | None = None
    tight: bool = False
    starting: str = ""  # the engine that was let go and is not active yet

    def choose(self, spec: Object, engines: dict[str, Object]) -> None:
        """One decision about roles: keep, promote, or obey the wish of this term."""
        wish = spec.get("wish") or {}
        if self.active and self.active not in engines:
            self._activate("", engines)
        if self.starting not in engines:
            self.starting = ""
        wished = wish.get("pod", "") if wish.get("term") == self.term and wish.get("pod") in engines else ""
        if wished and wished not in (self.active, self.starting):
            self._wished(wished, engines)
        elif not self.active and not self.starting:
            order = sorted(engines, key=lambda name: (_revision(engines[name]) != spec["revision"], name))
            healthy = [name for name in order if self.deaths.get(name, 0) < 5]
            if healthy:
                self._go(healthy[0], engines)

    def _wished(self, name: str, engines: dict[str, Object]) -> None:
        """In a swap whoever is active ends first; the term stays until somebody else is active."""
        if self.tight and self.active:
            self.active = self.active_uid = ""
        else:
            self._go(name, engines)

    def _go(self, name: str, engines: dict[str, Object]) -> None:
        image = engines[name]["spec"]["containers"][0]["image"]
        if "dying" in image:
            self.deaths[name] = self.deaths.get(name, 0) + 1
            self.term += 1
        elif "hanging" in image:
            self.starting = name
        else:
            self._activate(name, engines)

    def _activate(self, name: str, engines: dict[str, Object]) -> None:
        self.active, self.term, self.starting = name, self.term + 1, ""
        self.active_uid = engines[name]["metadata"]["uid"] if name else ""

    def status(self, engines: dict[str, Object], generation: int) -> Object:
        """What the agent publishes."""
        on = bool(self.active)
        if self.serving is None or self.serving[0] != on:
            self.serving = (on, self.clock())
        serving = {"type": "Serving", "status": str(on), "reason": "Active" if on else "NobodyAccepts", "message": ""}
        recovering = {"type": "Recovering", "status": str(self.recovering), "reason": "Asked", "message": ""}
        held = {"type": "WeightsHeld", "status": "True", "reason": "Sealed", "message": ""}
        return {
            "node": self.node,
            "observedGeneration": generation,
            "listener": True,
            "computeCapability": "9.0" if any(map(_on_gpus, engines.values())) else "",
            "active": {"pod": self.active, "uid": self.active_uid, "term": self.term},
            "engines": [self._engine(name, pod) for name, pod in sorted(engines.items())],
            "conditions": [
                {**serving, "lastTransitionTime": self.serving[1]},
                {**held, "lastTransitionTime": self.serving[1]},
                {**recovering, "lastTransitionTime": self.serving[1]},
            ],
        }

    def _engine(self, name: str, pod: Object) -> Object:
        return {
            "pod": name,
            "uid": pod["metadata"]["uid"],
            "revision": _revision(pod),
            "role": "active" if name == self.active else "gated",
            "phase": {self.active: "accepting", self.starting: "started"}.get(name, "gated"),
            "deaths": self.deaths.get(name, 0),
            "lastExit": "exit 7: FillFailed" if self.deaths.get(name) else "",
        }


def _on_gpus(pod: Object) -> bool:
    return "--runtime=sglang" in (pod["spec"]["containers"][0].get("args") or ())


def _revision(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["ling.dev/revision"])


class FakeNode:
    """The node and its agent, as a thread."""

    def __init__(self, url: str, token: str, ca: str, *, period: float = PERIOD) -> None:
        context = ssl.create_default_context(cafile=ca)
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, verify=context, timeout=PATIENCE
        )
        self._period = period
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-node", daemon=True)
        self._slots: dict[str, Slot] = {}
        self.lock = threading.Lock()
        self.paused = False
        self.seen: dict[str, tuple[str, str]] = {}  # uid -> namespace, name of every pod that ever was
        self.errors: list[str] = []

    # -- life
    def __enter__(self) -> FakeNode:
        self._agent_pod()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the fake node's round does not end"
        self._http.close()

    def pods_of(self, namespace: str) -> list[str]:
        """The names of all pods that ever were in the namespace, one for each object."""
        with self.lock:
            return sorted(name for where, name in self.seen.values() if where == namespace)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                self.tick()
            except Exception as error:
                self.errors.append(repr(error))

    # -- requests
    def call(
        self, method: str, path: str, body: object = None, content: str = "application/json", **query: str
    ) -> Object:
        """One request; a 404 or 409 is an empty answer: the next round looks again.

        An API server that is too busy (429, 5xx), or is making a kind's storage, is asked again.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._http.request(method, path, json=body, params=query, headers={"Content-Type": content})
            busy = answer.status_code == 429 or answer.status_code >= 500
            if not busy or time.monotonic() > deadline:
                break
            time.sleep(self._period)
        if answer.status_code in (404, 409):
            return {}
        answer.raise_for_status()
        return dict(answer.json())

    def _list(self, path: str) -> list[Object]:
        return list(self.call("GET", path).get("items") or ())

    def _pod_status(self, pod: Object, status: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self.call("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": status}, "application/merge-patch+json")

    def _agent_pod(self) -> None:
        self.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        told = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.call("PATCH", f"/api/v1/nodes/{NODE}/status", told, "application/merge-patch+json")
        base = "/api/v1/namespaces"
        self.call("POST", base, {"metadata": {"name": AGENT_NAMESPACE}})
        pod = {
            "metadata": {"name": "agent", "labels": {"ling.dev/component": "agent"}},
            "spec": {"nodeName": NODE, "containers": [{"name": "agent", "image": "agent"}]},
        }
        self.call("POST", f"{base}/{AGENT_NAMESPACE}/pods", pod)
        self.agent_ready(True)

    def agent_ready(self, ready: bool) -> None:
        """The agent's pod becomes Ready, or not."""
        path = f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods/agent/status"
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
        self.call("PATCH", path, {"status": status}, "application/merge-patch+json")

    # -- what kubelet and scheduler do
    def tick(self) -> None:
        """One look at everything."""
        if self.paused:
            return
        pods = [one for one in self._list("/api/v1/pods") if one["metadata"]["namespace"] != AGENT_NAMESPACE]
        slots = self._list("/apis/ling.dev/v1alpha1/lingslots")
        with self.lock:
            self.seen.update({_uid(one): (one["metadata"]["namespace"], one["metadata"]["name"]) for one in pods})
        for pod in pods:
            self._pod(pod)
        for slot in slots:
            self._slot(slot, pods)

    def _pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if not _live(pod):
            self.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self.call(
                "POST", f"{path}/binding", {"metadata": {"name": meta["name"], "uid": meta["uid"]}, "target": target}
            )
        elif (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            self._start(pod)

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        if "missing" in container["image"]:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"no such image {container['image']}"}}
            told = {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": False,
                "restartCount": 0,
            }
            if not (pod.get("status") or {}).get("containerStatuses"):
                self._pod_status(pod, {"containerStatuses": [{**told, "state": waiting}]})
            return
        self._pod_status(pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})

    # -- what the agent does
    def _slot(self, slot: Object, pods: list[Object]) -> None:
        meta = slot["metadata"]
        mine = [one for one in pods if _owner(one) == meta["uid"]]
        component = "ling.dev/component"
        keepers = [one for one in mine if one["metadata"]["labels"][component] == "slot" and _running(one)]
        if not keepers and meta["uid"] not in self._slots:
            return
        state = self._slots.setdefault(meta["uid"], Slot())
        engines = {
            one["metadata"]["name"]: one
            for one in mine
            if one["metadata"]["labels"][component] == "engine" and _running(one) and _live(one)
            if _revision(one) in slot["spec"]["revisions"]
        }
        state.choose(slot["spec"], engines)
        status = state.status(engines, meta["generation"])
        if status != state.written:
            body = {
                "apiVersion": "ling.dev/v1alpha1",
                "kind": "LingSlot",
                "metadata": {"name": meta["name"], "uid": meta["uid"]},
                "status": status,
            }
            path = f"/apis/ling.dev/v1alpha1/namespaces/{meta['namespace']}/lingslots/{meta['name']}/status"
            query = {"fieldManager": "ling-nodeagent", "force": "true"}
            if self.call("PATCH", path, body, "application/apply-patch+yaml", **query):
                state.written = status


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _owner(pod: Object) -> str:
    return next((one["uid"] for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), "")
