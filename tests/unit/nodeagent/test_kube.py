"""Mirrors of the API server: listed, watched, listed again when the thread is lost."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ling_api.errors import BadInput
from ling_nodeagent import kube
from ling_nodeagent.away import ApiAway, ApiRefused
from ling_nodeagent.cluster import Seen
from ling_nodeagent.kube import Mirror


def body(name: str, value: Any = 1, version: str = "2") -> dict[str, Any]:
    return {"metadata": {"namespace": "prod", "name": name, "resourceVersion": version}, "value": value}


def event(kind: str, name: str, value: Any = 1, version: str = "2") -> dict[str, Any]:
    return {"type": kind, "object": body(name, value, version)}


def parse(found: Mapping[str, Any]) -> int | None:
    if found["value"] == "nonsense":
        raise BadInput("value: write a number")
    value: int | None = found["value"]
    return value


class FakeApi:
    """`lists` and `watches` are answered in turn: an exception is raised; after the last watch nothing comes."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self.lists, self.watches, self.versions = lists, watches, list[str]()

    async def get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        found = self.lists.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"metadata": {"resourceVersion": "1"}, "items": found}

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        self.versions.append(query["resourceVersion"])
        if not self.watches:
            await asyncio.Event().wait()
        for each in self.watches.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


async def follow(api: FakeApi, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a mirror until it has what is expected and nothing more comes; the versions that were watched from."""
    monkeypatch.setattr(kube, "FIRST_RETRY", 0.001)
    seen = Seen[int]()
    task = asyncio.create_task(Mirror(api, "/p", {}, parse, seen, lambda: None).run())  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(30):
            while api.watches or api.lists or seen.objects != expected:
                await asyncio.sleep(0.001)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen.synced
    return api.versions


async def test_events_change_what_was_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [event("ADDED", "b", 2), event("MODIFIED", "a", 5), event("DELETED", "c"), event("BOOKMARK", "", 0, "9")]
    api = FakeApi([[body("a"), body("c", 3)]], [events])
    assert await follow(api, {"prod/a": 5, "prod/b": 2}, monkeypatch) == ["1", "9"]


async def test_an_object_that_is_none_of_ours_any_more_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    await follow(FakeApi([[body("a"), body("b", None)]], [[event("MODIFIED", "a", None)]]), {}, monkeypatch)


async def test_a_refused_object_keeps_the_value_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi([[body("a")], [body("a", "nonsense")]], [[event("MODIFIED", "a", "nonsense"), ApiAway("broke")]])
    await follow(api, {"prod/a": 1}, monkeypatch)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"type": "ERROR", "object": {"code": 410, "message": "too old"}}, id="too-old"),
        pytest.param({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}, id="server-error"),
        pytest.param(ApiAway("the watch broke"), id="broken"),
        pytest.param(ApiRefused(403, "forbidden"), id="refused"),
    ],
)
async def test_a_lost_watch_lists_again(monkeypatch: pytest.MonkeyPatch, trouble: Any) -> None:
    api = FakeApi([[body("a")], [body("b")]], [[trouble]])
    assert await follow(api, {"prod/b": 1}, monkeypatch) == ["1", "1"]


async def test_it_waits_for_an_api_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    await follow(FakeApi([ApiAway("no answer"), ApiAway("no answer"), [body("a")]], []), {"prod/a": 1}, monkeypatch)
