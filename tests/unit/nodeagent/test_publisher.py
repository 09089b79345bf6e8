"""The publisher: newest first, never twice, on through refusals."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from ling_nodeagent import publisher
from ling_nodeagent.away import ApiAway, ApiRefused
from ling_nodeagent.publisher import Publisher

SLOT = "prod/chat-0"


class Api:
    """Collects writes; `fail` is raised by those to come."""

    def __init__(self) -> None:
        self.writes: list[dict[str, Any]] = []
        self.fail: Exception | None = None
        self.tries = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def write(self, slot: str, status: dict[str, Any]) -> None:
        self.tries += 1
        await self.hold.wait()
        if self.fail is not None:
            raise self.fail
        self.writes.append(status)

    def times(self, slot: str) -> Mapping[str, tuple[str, str]]:
        return {"Serving": ("True", "2026-01-01T00:00:00Z")}

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.writes) < count:
                await asyncio.sleep(0.001)


def status(term: int, requests: int = 0) -> dict[str, Any]:
    return {"active": {"term": term}, "engines": [{"pod": "p", "requests": requests}], "conditions": []}


def terms(api: Api) -> list[int]:
    return [write["active"]["term"] for write in api.writes]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def publish(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    monkeypatch.setattr(publisher, "FIRST_RETRY", 0.01)
    found = Publisher(api.write, api.times)
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_transitions_are_written_at_once_and_only_the_newest_waits(api: Api, publish: Publisher) -> None:
    api.hold.clear()
    publish.publish(SLOT, status(1))
    async with asyncio.timeout(60):
        while api.tries == 0:
            await asyncio.sleep(0.001)
    publish.publish(SLOT, status(2))
    publish.publish(SLOT, status(3))
    api.hold.set()
    await api.until(2)
    assert terms(api) == [1, 3]


async def test_the_same_status_is_not_written_again_and_counters_wait(api: Api, publish: Publisher) -> None:
    publish.publish(SLOT, status(1))
    await api.until(1)
    publish.publish(SLOT, status(1))
    publish.publish(SLOT, status(1, requests=5))
    publish.publish("prod/other-0", status(7))
    await api.until(2)
    assert terms(api) == [1, 7]  # the counters of the first slot are not due yet


async def test_it_goes_on_until_the_api_server_is_back(api: Api, publish: Publisher) -> None:
    api.fail = ApiAway("no answer")
    publish.publish(SLOT, status(1))
    async with asyncio.timeout(60):
        while api.tries < 3:
            await asyncio.sleep(0.001)
    publish.publish(SLOT, status(2))
    api.fail = None
    await api.until(1)
    assert terms(api) == [2]


async def test_a_slot_that_is_gone_is_let_be(api: Api, publish: Publisher) -> None:
    api.fail = ApiRefused(404, "not found")
    publish.publish(SLOT, status(1))
    async with asyncio.timeout(60):
        while api.tries == 0:
            await asyncio.sleep(0.001)
    api.fail = None
    publish.publish("prod/other-0", status(7))
    await api.until(1)
    assert (terms(api), api.tries) == ([7], 2)
    assert list(publish._entries) == ["prod/other-0"], "nothing is kept of slots that are gone"


async def test_condition_times_go_on_from_the_api_servers(api: Api, publish: Publisher) -> None:
    serving = {"type": "Serving", "status": "True", "reason": "Accepting", "message": ""}
    publish.publish(SLOT, {"conditions": [serving]})
    await api.until(1)
    assert api.writes[0]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    publish.publish(SLOT, {"conditions": [{**serving, "status": "False"}]})
    await api.until(2)
    assert api.writes[1]["conditions"][0]["lastTransitionTime"] > "2026-01-01T00:00:00Z"
