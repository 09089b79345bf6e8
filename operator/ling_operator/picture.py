"""What the page shows, from the objects that the operator knows: nodes, slots on them, engines in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ling_api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

type Object = Mapping[str, Any]

GOOD_WHEN_FALSE: Final = (names.DEGRADED, names.UPDATE_IN_PROGRESS)


def _key(body: Object) -> str:
    return f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"


def _conditions(body: Object) -> dict[str, Object]:
    return {one["type"]: one for one in (body.get("status") or {}).get("conditions") or ()}


def _true(body: Object, kind: str) -> bool:
    return str(_conditions(body).get(kind, {}).get("status")) == "True"


def _node(body: Object, agents: frozenset[str]) -> dict[str, Any]:
    name = body["metadata"]["name"]
    return {
        "name": name,
        "ready": _true(body, "Ready"),
        "leaving": bool((body.get("spec") or {}).get("unschedulable")),
        "agent": name in agents,
    }


def _deployment(body: Object) -> dict[str, Any]:
    status = body.get("status") or {}
    current, wanted = status.get("currentRevision") or "", status.get("updateRevision") or ""
    complaints = [
        f"{kind}: {one['message']}"
        for kind, one in _conditions(body).items()
        if (one["status"] == "True") == (kind in GOOD_WHEN_FALSE) and kind != names.UPDATE_IN_PROGRESS
    ]
    return {
        "key": _key(body),
        "model": body["spec"]["model"]["source"],
        "decoding": (body["spec"].get("decoding") or {}).get("algorithm") or "None",
        "ready": _true(body, names.READY),
        "changing": _true(body, names.UPDATE_IN_PROGRESS),
        "serving": status.get("serving") or "",
        "message": status.get("message") or "the operator has not looked at it yet",
        "current": current,
        "wanted": wanted,
        "performance": status.get("performance") or {},
        "complaints": complaints,
    }


def _slot(body: Object) -> dict[str, Any]:
    spec, status = body["spec"], body.get("status") or {}
    namespace = body["metadata"].get("namespace", "")
    return {
        "key": _key(body),
        "deployment": f"{namespace}/{spec['deployment']}",
        "node": status.get("node") or "",
        "serving": _true(body, names.SERVING),
        "spare": bool(spec.get("spare")),
        "leaving": bool(spec.get("leaving")) or "deletionTimestamp" in body["metadata"],
        "lost": _true(body, names.AGENT_LOST),
        "message": status.get("message") or "",
        "revision": spec["revision"],
        "term": (status.get("active") or {}).get("term", 0),
        "gpus": list(status.get("gpus") or ()),
        "capacity": dict(status.get("capacity") or {}),
        "sets": [
            {key: one.get(key) for key in ("set", "role", "rank", "bytes", "state", "progress")}
            for one in status.get("weightSets") or ()
        ],
        "engines": [
            {key: one.get(key) for key in ("pod", "revision", "role", "phase", "inFlight", "deaths")}
            for one in status.get("engines") or ()
        ],
    }


def ready_agents(pods: Iterable[Object]) -> frozenset[str]:
    """Nodes whose agent is ready."""
    return frozenset(
        str(one["spec"].get("nodeName"))
        for one in pods
        if (one["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT) == names.COMPONENT_AGENT
        and _true(one, "Ready")
    )


def draw(
    deployments: Iterable[Object], slots: Iterable[Object], nodes: Iterable[Object], pods: Iterable[Object]
) -> dict[str, Any]:
    """All of it, sorted, so that the same objects give the same picture."""
    agents = ready_agents(pods)
    return {
        "nodes": sorted((_node(one, agents) for one in nodes), key=lambda one: str(one["name"])),
        "deployments": sorted((_deployment(one) for one in deployments), key=lambda one: str(one["key"])),
        "slots": sorted((_slot(one) for one in slots), key=lambda one: str(one["key"])),
    }
