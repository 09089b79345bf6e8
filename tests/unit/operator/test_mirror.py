"""The mirror: reads cost nothing, what was written is seen at once, what is older than what is known is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ling_operator.kube import Conflict
from ling_operator.mirror import Mirror


def pod(name: str, version: int, *, uid: str = "", label: str = "chat") -> dict[str, Any]:
    labels = {"ling.dev/deployment": label, "ling.dev/component": "slot"}
    meta = {"namespace": "prod", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": {**meta, "labels": labels}}


class Server:
    """The API server's answers; counts what it is asked."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {one["metadata"]["name"]: one for one in pods}
        self.asked: list[str] = []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked.append("get")
        return self.pods.get(name)

    async def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        self.asked.append(f"list {kind}")
        return list(self.pods.values()) if kind == "Pod" else []

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["metadata"]["name"] in self.pods:
            raise Conflict(409, "exists")
        return body

    async def delete(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"kind": "Status"}


def mirror(*pods: dict[str, Any]) -> tuple[Mirror, Server]:
    server = Server(*pods)
    return Mirror(server), server  # type: ignore[arg-type]


def names(found: Mirror, label: str = "chat") -> list[str]:
    listed = asyncio.run(found.list("Pod", "prod", f"ling.dev/deployment={label}"))
    return [one["metadata"]["name"] for one in listed]


def test_what_went_while_a_list_was_under_way_stays_gone() -> None:
    found, server = mirror(pod("a", 1), pod("b", 2))
    asyncio.run(found.sync())
    before = server.pods.copy()

    async def slow(kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        found.saw_gone("Pod", pod("a", 9))  # the watch is quicker than the answer
        return list(before.values()) if kind == "Pod" else []

    server.list = slow  # type: ignore[method-assign]
    asyncio.run(found.sync())
    assert names(found) == ["b"]
    found.saw("Pod", pod("a", 3))
    assert names(found) == ["b"], "nor does a late word bring it back"
    found.saw("Pod", pod("a", 10, uid="another"))
    assert names(found) == ["a", "b"]


def test_a_listing_is_remembered_and_reads_ask_nobody() -> None:
    found, server = mirror(pod("b", 2), pod("a", 1), pod("c", 3, label="other"))
    asyncio.run(found.sync())
    asked = len(server.asked)
    assert names(found) == ["a", "b"]
    assert asyncio.run(found.get("Pod", "prod", "c")) == pod("c", 3, label="other")
    assert asyncio.run(found.get("Pod", "prod", "d")) is None
    assert len(server.asked) == asked


def test_an_older_event_changes_nothing_and_a_newer_one_does() -> None:
    found, _ = mirror()
    found.saw("Pod", pod("a", 5))
    found.saw("Pod", pod("a", 4, label="old"))
    assert (names(found), names(found, "old")) == (["a"], [])
    found.saw("Pod", pod("a", 6, label="new"))
    assert (names(found), names(found, "new")) == ([], ["a"])


def test_who_wrote_which_field_is_not_kept() -> None:
    found, _ = mirror()
    told = pod("a", 5)
    told["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {}}]
    found.saw("Pod", told)
    assert asyncio.run(found.get("Pod", "prod", "a")) == pod("a", 5)


def test_the_end_of_a_namesake_is_not_the_end_of_its_successor() -> None:
    found, _ = mirror()
    found.saw("Pod", pod("a", 5, uid="second"))
    found.saw_gone("Pod", pod("a", 4, uid="first"))
    assert names(found) == ["a"]
    found.saw_gone("Pod", pod("a", 6, uid="second"))
    assert names(found) == []


def test_a_listing_drops_what_it_does_not_name_but_not_what_came_meanwhile() -> None:
    found, server = mirror(pod("a", 1))
    found.saw("Pod", pod("lost", 1))
    asyncio.run(found.sync())
    assert names(found) == ["a"]
    server.pods.clear()

    class Slow(Server):
        async def list(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
            if kind == "Pod":
                found.saw("Pod", pod("made meanwhile", 9))
            return []

    found._kube = Slow()  # type: ignore[assignment]
    asyncio.run(found.sync())
    assert names(found) == ["made meanwhile"]


def test_what_was_written_is_seen_at_once() -> None:
    found, _ = mirror()
    asyncio.run(found.create(pod("a", 1)))
    assert names(found) == ["a"]
    asyncio.run(found.delete("Pod", "prod", "a", "uid-a"))
    assert names(found) == []


def test_a_conflict_teaches_what_is_there() -> None:
    found, server = mirror(pod("a", 7, uid="somebody else's"))
    with pytest.raises(Conflict):
        asyncio.run(found.create(pod("a", 1)))
    assert server.asked == ["get"]
    assert names(found) == ["a"]
