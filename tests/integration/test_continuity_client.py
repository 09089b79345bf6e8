"""The continuity client must tell apart how requests end, or every figure that rests on it is worth nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from benchmarks import continuity, continuity_client, continuity_picture, continuity_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Respond = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ANSWER = json.dumps({"choices": [{"text": "ab", "finish_reason": "length"}]}).encode()


def response(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return await reader.readexactly(length)


@asynccontextmanager
async def server(respond: Respond) -> AsyncIterator[int]:
    """A server that answers each request as `respond` does; its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await read_request(reader)
                await respond(reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as running:
        yield running.sockets[0].getsockname()[1]


async def good(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(response(ANSWER))


async def closing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(response(ANSWER, "200 OK", "Connection: close"))


async def busy(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(response(b'{"error": "full"}', "429 Too Many Requests"))


async def dies(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def dies_half_way(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(response(ANSWER)[:-10])
    writer.close()


@pytest.mark.parametrize(
    ("respond", "failed"),
    [
        pytest.param(good, "", id="good"),
        pytest.param(closing, "", id="good and closed"),
        pytest.param(busy, "status", id="429"),
        pytest.param(dies, "broken", id="reset before an answer"),
        pytest.param(dies_half_way, "broken", id="end in the middle of an answer"),
    ],
)
@pytest.mark.parametrize("mode", ["new", "keep", "both"])
async def test_end_of_a_request_is_named(respond: Respond, failed: str, mode: str) -> None:
    async with server(respond) as port:
        client = continuity_client.Client("127.0.0.1", port, "m", mode)
        row = continuity_client.row(0, 0.0)
        await client.ask(row)
        for _, writer, _ in client.idle:
            writer.close()
    assert row.failed == failed, row.why
    assert row.sent <= row.ended


async def test_nobody_listening_is_refused() -> None:
    row = continuity_client.row(0, 0.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that nobody else can listen there
        await continuity_client.Client("127.0.0.1", silent.getsockname()[1], "m", "new").ask(row)
    assert (row.failed, row.sent) == ("refused", 0.0)


async def test_keep_alive_uses_a_connection_again_until_it_is_closed() -> None:
    async with server(good) as port:
        client = continuity_client.Client("127.0.0.1", port, "m", "keep")
        rows = [continuity_client.row(number, 0.0) for number in (0, 2)]
        for row in rows:
            await client.ask(row)
        client.idle[-1][1].close()
        rows.append(continuity_client.row(2, 0.0))
        await client.ask(rows[-1])
        client.idle[-1][1].close()
    assert [(row.reused, row.failed) for row in rows] == [(False, ""), (True, ""), (False, "")]


async def test_both_ways_of_connecting_alternate_with_streams_and_whole_answers_in_each() -> None:
    async with server(good) as port:
        client = continuity_client.Client("127.0.0.1", port, "m", "both")
        rows = [continuity_client.row(number, 0.0) for number in range(4)]
        asked = [(client.keeps(row), b"Connection: close" in client.request(row), row.kind) for row in rows]
        whole = [continuity_client.row(number, 0.0) for number in (0, 2, 4, 6)]
        for row in whole:
            await client.ask(row)
        client.idle[-1][1].close()
    ways = [(False, True, "work"), (False, True, "short stream"), (True, False, "work"), (True, False, "short stream")]
    assert asked == ways
    assert [row.reused for row in whole] == [False, False, False, True]


async def test_stream_must_end_with_done() -> None:
    events = [b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"]

    def chunked(parts: list[bytes]) -> bytes:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])

    async def whole(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(events))

    async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(events[:1]))

    ends = []
    for respond in (whole, cut):
        async with server(respond) as port:
            row = continuity_client.row(7, 0.0)
            await continuity_client.Client("127.0.0.1", port, "m", "new").ask(row)
            ends.append((row.kind, row.failed))
    assert ends == [("stream", ""), ("stream", "wrong")]


def test_report_counts_by_kind_and_measures_the_gap_around_an_event() -> None:
    def row(sent: float, ended: float, failed: str = "") -> dict[str, object]:
        return {"kind": "work", "due": sent, "sent": sent, "ended": ended, "failed": failed, "why": failed}

    rows = [row(9.0, 9.1), row(9.9, 10.2, "broken"), row(10.1, 10.9), row(10.3, 11.0)]
    report = continuity_report.analyse("server", "new", 10.0, rows, [(10.0, 10.5)])
    assert report.failures == {"broken": 1}
    assert report.in_flight == [1]
    assert report.gaps == [pytest.approx(100.0)]
    assert report.slowest == [pytest.approx(800.0)]
    assert report.ok


@pytest.mark.parametrize(
    ("event", "sent", "failed", "ok"),
    [
        ("server", 0.9, "broken", True), ("server", 1.4, "broken", True), ("server", 1.6, "broken", False),
        ("server", 0.9, "refused", False), ("edit", 0.9, "broken", False),
    ],
    ids=["in flight", "before the reset", "long after it", "refused", "no server was killed"],
)  # fmt: skip
def test_only_a_killed_server_may_break_requests_and_only_those_under_way(
    event: str, sent: float, failed: str, ok: bool
) -> None:
    rows = [{"kind": "work", "due": sent, "sent": sent, "ended": 2.0, "failed": failed, "why": ""}]
    assert continuity_report.analyse(event, "new", 1.0, rows, [(1.0, 3.0)]).ok is ok


def test_a_gap_is_told_beyond_that_of_a_steady_load() -> None:
    times = [n / 10 for n in range(100)]
    hole = [t for t in times if not 5.0 < t < 5.55]
    rows = [
        {"kind": "work", "due": t, "sent": t, "first": t, "ended": t, "failed": "", "why": ""} for t in (*hole, 10.0)
    ]
    report = continuity_report.analyse("handover", "new", 10.0, rows, [(5.0, 5.2)])
    assert report.steady_gap == pytest.approx(100, abs=1)
    assert report.gaps == [pytest.approx(600, abs=1)]
    assert report.gap == pytest.approx(500, abs=2)
    assert continuity_report.together([report, report]).gaps == report.gaps * 2


@pytest.mark.parametrize(
    ("engine", "beyond"),
    [([300.0], 200.0), ([900.0], 0.0), ([], None)],
    ids=["more than the engine's start", "covered by it", "not known"],
)
def test_a_gap_is_told_beyond_the_new_engines_own_start(engine: list[float], beyond: float | None) -> None:
    report = continuity_report.Report("swap", "both", 10.0, gaps=[600.0], steady_gap=100.0, engine=engine)
    assert report.beyond_engine == beyond
    told = {one["name"]: one["ok"] for one in continuity_report.figures(report)}
    assert told.get("continuity.swap.both.gap-beyond-engine") == (None if beyond is None else beyond == 0)


@pytest.mark.parametrize(("gap", "met"), [(140.0, True), (151.0, False)], ids=["within the goal", "beyond it"])
def test_a_goal_that_is_missed_is_no_success(gap: float, met: bool, tmp_path: Path) -> None:
    report = continuity_report.Report("handover", "both", 10.0, gaps=[gap], steady_gap=100.0)
    assert continuity.write(tmp_path / "found.json", [report]) is met


def test_the_picture_has_a_row_for_each_report_and_a_dot_for_each_event() -> None:
    rows = [{"event": "swap", "mode": "new", "gaps": [30.0, 900.0], "steady_gap": 20.0, "sent": 7, "failures": {}}]
    svg = ElementTree.fromstring(continuity_picture.draw(rows))  # noqa: S314 - our own
    assert len(svg.findall("{http://www.w3.org/2000/svg}circle")) == 2
    assert any(text.text == "swap, new" for text in svg.iter("{http://www.w3.org/2000/svg}text"))
