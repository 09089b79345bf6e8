"""The operator's page: what it draws, who may ask, what changes on it; and that a real browser shows it."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import browser
from tests.support import ling_objects as objects

from ling_operator import page, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GIB = 1 << 30


def node(name: str, *, cordoned: bool = False) -> dict[str, Any]:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name}, "spec": {"unschedulable": cordoned}, "status": ready}


def agent(where: str) -> dict[str, Any]:
    pod = objects.pod("agent", f"agent-{where}", node=where, conditions=[{"type": "Ready", "status": "True"}])
    return pod


def view(**status: Any) -> dict[str, Any]:
    """A LingDeployment in the middle of an update, one slot with an active and a warm engine, two nodes."""
    engines = [
        {
            "pod": "tiny-0-old-0",
            "revision": "aaaa1111",
            "role": "active",
            "phase": "accepting",
            "inFlight": 2,
            "deaths": 0,
        },
        {"pod": "tiny-0-new-0", "revision": "bbbb2222", "role": "warm", "phase": "warm", "inFlight": 0, "deaths": 1},
    ]
    told = {
        "engines": engines,
        "weightSets": [
            {"set": "c0ffee:0", "role": "target", "rank": 0, "bytes": 60 * GIB, "state": "filling", "progress": 0.43}
        ],
        "capacity": {"total": 141 * GIB, "weights": 63 * GIB, "plans": 44 * GIB},
        "active": {"pod": "tiny-0-old-0", "term": 3},
        **status,
    }
    slot = objects.slot(objects.condition("Serving", "True"), **told)
    slot["spec"] |= {"revision": "bbbb2222"}
    body = objects.deployment(
        objects.condition("Ready", "True"),
        objects.condition("UpdateInProgress", "True"),
        objects.condition("Degraded", "True", message="<b>odd</b>"),
        currentRevision="aaaa1111",
        updateRevision="bbbb2222",
        performance={"tpotMs": 0.78, "ttftMs": 118.2, "acceptLength": 4.31},
    )
    return picture.draw([body], [slot], [node("n1", cordoned=True), node("n2")], [agent("n1")])


class Shown:
    """A page on loopback with a picture that the test changes."""

    def __init__(self) -> None:
        self.view = view()
        self.page = page.Page(self.look)
        self.port = 0

    async def look(self) -> dict[str, Any]:
        return copy.deepcopy(self.view)

    async def ask(self, head: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode())
        return reader, writer


@pytest.fixture
async def shown() -> AsyncIterator[Shown]:
    found = Shown()
    found.port = await found.page.start(0)
    yield found
    found.page.stop()


def test_the_picture_has_what_people_look_for() -> None:
    drawn = view()
    assert [(one["name"], one["leaving"], one["agent"]) for one in drawn["nodes"]] == [
        ("n1", True, True),
        ("n2", False, False),
    ]
    (deployment,), (slot,) = drawn["deployments"], drawn["slots"]
    assert (deployment["ready"], deployment["changing"], deployment["current"]) == (True, True, "aaaa1111")
    assert deployment["complaints"] == ["Degraded: <b>odd</b>"]
    assert (slot["deployment"], slot["node"], slot["serving"], slot["term"]) == ("team/tiny", "n1", True, 3)
    assert [engine["role"] for engine in slot["engines"]] == ["active", "warm"]


def test_an_object_that_nobody_has_looked_at_is_drawn_too() -> None:
    bare = {"metadata": {"name": "x", "namespace": "a"}, "spec": {"model": {"source": "host:///x"}}}
    slot = {"metadata": {"name": "x-0", "namespace": "a"}, "spec": {"deployment": "x", "revision": "r"}}
    drawn = picture.draw([bare], [slot], [{"metadata": {"name": "n"}}], [])
    assert drawn["deployments"][0]["message"] == "the operator has not looked at it yet"
    assert drawn["slots"][0]["node"] == ""
    json.dumps(drawn)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:9401\r\n\r\n", 200),
        ("GET /?x HTTP/1.1\r\nhost: localhost\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: localhost.evil.example:9401\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\n\r\n", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("\r\n\r\n", 403),
    ],
    ids=["address", "name", "v6", "foreign", "prefix", "none", "method", "path", "empty"],
)
async def test_only_loopback_names_are_answered(shown: Shown, head: str, status: int) -> None:
    reader, writer = await shown.ask(head)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "Content-Security-Policy: default-src 'none'" in answer


async def test_the_stream_tells_what_changed_and_nothing_twice(shown: Shown) -> None:
    reader, writer = await shown.ask("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")

    async def event() -> dict[str, Any]:
        async with asyncio.timeout(60):
            line = await reader.readuntil(b"\n\n")
        found: dict[str, Any] = json.loads(line.decode().removeprefix("data: "))
        return found

    assert (await event())["slots"][0]["term"] == 3
    shown.view["slots"][0]["term"] = 4
    assert (await event())["slots"][0]["term"] == 4
    writer.close()


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium: hack/bootstrap cluster, or apt-get install it")
async def test_a_real_browser_shows_it_in_light_and_dark_and_follows(shown: Shown, tmp_path: Path) -> None:
    await asyncio.to_thread(look_at, shown, tmp_path)


def look_at(shown: Shown, folder: Path) -> None:
    """What a person does: opens it, reads, sees a promotion, comes back at night."""
    with browser.Browser(folder) as chromium:
        chromium.open(f"http://127.0.0.1:{shown.port}/")
        text = chromium.wait_for("1 LingDeployments, 1 slots, 2 nodes")
        for words in (
            "aaaa1111 → bbbb2222 …",
            "Degraded: <b>odd</b>",
            "63.0 GiB weights + 44.0 GiB plans of 141.0 GiB",
            "43 %",
            "active, accepting, 2 in flight",
            "warm, 1 deaths",
            "cordoned",
            "no ready agent",
            "no slot",
        ):
            assert words in text, words
        assert chromium.evaluate("document.querySelectorAll('svg').length") == 2
        light = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
        promoted = copy.deepcopy(shown.view)
        promoted["slots"][0]["engines"][0]["role"] = "draining"
        promoted["slots"][0]["engines"][1]["role"] = "active"
        shown.view = promoted
        text = chromium.wait_for("tiny-0-new-0 warm → active")
        assert "tiny-0-old-0 active → draining" in text
        chromium.open(f"http://127.0.0.1:{shown.port}/", scheme="dark")
        chromium.wait_for("1 LingDeployments, 1 slots, 2 nodes")
        assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") != light
        assert chromium.errors == []
