"""Paths, counts, times and the end of a drain, at the ASGI edge."""

import asyncio
import json
from typing import Any

import pytest

from ling_engine import requests
from ling_engine.metrics import ServerMetrics
from ling_engine.middleware import Middleware

STREAM = [(b"content-type", b"text/event-stream")]


class Call:
    """One request against the middleware; `sent` is what went to the client."""

    def __init__(self, app: Any, *, path: str = "/v1/completions", method: str = "POST", **options: Any) -> None:
        self.metrics = ServerMetrics()
        self.middleware = Middleware(app, self.metrics, **options)
        self.method = method
        self.sent: list[dict[str, Any]] = []
        self.path = path

    async def run(self) -> "Call":
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            self.sent.append(dict(message))

        await self.middleware({"type": "http", "path": self.path, "method": self.method}, receive, send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


async def answer(scope: Any, receive: Any, send: Any) -> None:
    requests.current().token()
    requests.current().token(3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"keep-alive")]})
    await send({"type": "http.response.body", "body": b"done"})


async def hang(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def hang_in_stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
    await asyncio.Event().wait()


async def hang_in_body(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    await asyncio.Event().wait()


async def fail(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/completions", 200),
        ("POST", "/v1/chat/completions", 200),
        ("OPTIONS", "/v1/chat/completions", 200),
        ("POST", "/generate", 200),
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models/m", 200),
        ("GET", "/health", 200),
        ("GET", "/metrics", 200),
        ("GET", "/generate", 405),
        ("PUT", "/generate", 405),
        ("POST", "/v1/models/m", 405),
        ("POST", "/update_weights_from_disk", 403),
        ("GET", "/", 403),
        ("POST", "/v1/completions/", 403),
        ("POST", "//generate", 403),
        ("GET", "/v1/modelsX", 403),
        ("GET", "/docs", 403),
    ],
)
async def test_only_listed_paths_reach_anything(method: str, path: str, status: int) -> None:
    call = await Call(answer, path=path, method=method).run()
    assert call.status == status
    if status == 403:
        assert json.loads(call.body)["error"]["type"] == "forbidden"
        assert path not in call.metrics.text(), "a scanner makes no series"


async def test_a_connection_that_is_no_http_reaches_nothing() -> None:
    call = Call(fail)
    with pytest.raises(NotImplementedError):
        await call.middleware({"type": "websocket", "path": "/v1/completions"}, anything, anything)


async def anything(*_message: Any) -> Any:
    raise AssertionError("nothing is received or sent")


async def test_what_a_runtime_measures_itself_stands_beside_ours() -> None:
    call = await Call(answer, path="/metrics", method="GET", more_metrics=lambda: "sglang:x 1\n").run()
    assert b"ling_requests_in_flight" in call.body
    assert call.body.endswith(b"sglang:x 1\n")


async def test_more_than_the_limit_are_told_to_come_again() -> None:
    call = Call(hang, limit=1)
    running = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    await call.run()
    assert call.status == 429
    assert (b"retry-after", b"1") in call.sent[0]["headers"]
    assert call.metrics.in_flight == 1
    running.cancel()
    await asyncio.wait([running])


async def test_tokens_and_times_are_counted_once() -> None:
    call = await Call(answer).run()
    text = call.metrics.text()
    assert "ling_output_tokens_total 4.0" in text
    assert "ling_time_to_first_token_seconds_count 1.0" in text
    assert "ling_time_per_output_token_seconds_count 1.0" in text
    assert 'ling_requests_total{path="/v1/completions",status="200"} 1.0' in text
    performance = call.metrics.performance()
    assert (performance["in_flight"], performance["requests"], performance["output_tokens"]) == (0, 1, 4)


@pytest.mark.parametrize(
    ("answers", "accept_length"),
    [
        pytest.param([], 0, id="nobody asked"),
        pytest.param([(0, 0, 0)], 0, id="plain decoding has no rounds"),
        pytest.param([(10, 45, 35)], 4.5, id="one answer"),
        pytest.param([(10, 45, 35), (0, 0, 0), (30, 35, 5)], 2.0, id="a long answer counts more"),
    ],
)
def test_the_accept_length_is_all_tokens_by_all_rounds(
    answers: list[tuple[int, int, int]], accept_length: float
) -> None:
    metrics = ServerMetrics()
    for counts in answers:
        record = requests.RequestRecord()
        record.verified(*counts)
        metrics.began()
        metrics.ended(record)
    assert metrics.performance()["mean_accept_length"] == accept_length


def test_what_the_means_are_of() -> None:
    metrics = ServerMetrics()
    assert (metrics.performance()["samples"], metrics.performance()["window_seconds"]) == (0, 0.0)
    for number in range(300):
        record = requests.RequestRecord(began=float(number), tokens=2)
        record.first, record.last = number + 0.25, number + 0.5
        metrics.began()
        metrics.ended(record)
    performance = metrics.performance()
    assert (performance["requests"], performance["samples"]) == (300, 256), "the last ones"
    assert performance["window_seconds"] == 255.0


async def test_buckets_suit_a_fast_decoder() -> None:
    text = (await Call(answer).run()).metrics.text()
    for bucket in ("0.0002", "0.0008", "0.005"):
        assert f'ling_time_per_output_token_seconds_bucket{{le="{bucket}"}}' in text


async def test_in_flight_is_seen_while_it_runs() -> None:
    call = Call(hang)
    task = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    assert call.metrics.in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.metrics.in_flight == 0


async def test_a_failing_runtime_is_an_explicit_error() -> None:
    call = await Call(fail).run()
    assert call.status == 500
    assert json.loads(call.body)["error"]["code"] == "internal_error"
    assert call.metrics.failed == 1


async def test_closing_marks_responses_that_have_not_begun() -> None:
    call = Call(answer)
    call.middleware.closing = True
    await call.run()
    assert [value for key, value in call.sent[0]["headers"] if key == b"connection"] == [b"close"]


async def cut_after_begin(call: Call) -> asyncio.Task[Call]:
    task = asyncio.create_task(call.run())
    for _ in range(3):
        await asyncio.sleep(0)
    assert call.middleware.cut() == 1
    return task


@pytest.mark.parametrize("app", [hang, hang_in_stream], ids=["not-begun", "stream"])
async def test_a_cut_request_is_told_why_and_counted(app: Any) -> None:
    call = Call(app)
    await (await cut_after_begin(call))
    error = json.loads(call.body.split(b"data: ")[-1])["error"]
    assert "grace period" in error["message"]
    assert call.sent[-1].get("more_body", False) is False
    assert call.metrics.failed == 1
    assert 'ling_requests_failed_total{reason="grace"} 1.0' in call.metrics.text()


async def test_a_cut_body_breaks_the_connection() -> None:
    task = await cut_after_begin(Call(hang_in_body))
    with pytest.raises(ConnectionAbortedError):
        await task


def test_a_first_token_is_told_at_once_and_every_token_counted_once() -> None:
    metrics = ServerMetrics()
    told: list[float] = []
    metrics.on_first_token = lambda: told.append(metrics.performance()["output_tokens"])
    metrics.began()
    record = requests.RequestRecord(emitted=metrics.emitted)
    record.token()
    assert told == [1], "a server that dies in the middle of a long answer has had its first token"
    record.token(2)
    metrics.ended(record)
    assert told == [1]
    assert metrics.performance()["output_tokens"] == 3
    assert "ling_output_tokens_total 3.0" in metrics.text()


async def linger(scope: Any, receive: Any, send: Any) -> None:
    await answer(scope, receive, send)
    await asyncio.Event().wait()


async def test_a_complete_response_is_no_work_in_flight_whatever_its_application_does_after_it() -> None:
    call = Call(linger)
    task = asyncio.create_task(call.run())
    for _ in range(3):
        await asyncio.sleep(0)
    assert (call.metrics.in_flight, call.metrics.requests, call.middleware.busy) == (0, 1, False)
    assert call.middleware.cut() == 0
    task.cancel()
    await asyncio.wait([task])
    assert call.metrics.requests == 1


async def read_body(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body", False):
        pass


async def read_and_hang(scope: Any, receive: Any, send: Any) -> None:
    await read_body(scope, receive, send)
    await asyncio.Event().wait()


async def read_and_stream(scope: Any, receive: Any, send: Any) -> None:
    await read_body(scope, receive, send)
    requests.current().token()
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
    await asyncio.Event().wait()


class Slow:
    """A client that sends a piece of a body when it is told, and reads a piece of the answer when it is told."""

    def __init__(self, app: Any) -> None:
        self.metrics = ServerMetrics()
        self.middleware = Middleware(app, self.metrics)
        self.body: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.reads = asyncio.Semaphore(0)

    async def run(self) -> None:
        async def receive() -> dict[str, Any]:
            piece, more = await self.body.get()
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message: Any) -> None:
            await self.reads.acquire()

        await self.middleware({"type": "http", "path": "/v1/completions", "method": "POST"}, receive, send)

    async def patience(self) -> float:
        """Seconds, once everybody has done what can be done."""
        for _ in range(10):
            await asyncio.sleep(0)
        assert self.metrics.in_flight == 1, "for a drain it is in flight all the time"
        assert self.middleware.busy
        return self.metrics.performance()["patience_ms"] / 1000


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_who_waits_for_the_rest_of_a_body_does_not_hang_and_its_bytes_are_counted_as_they_come() -> None:
    client = Slow(read_and_hang)
    task = asyncio.create_task(client.run())
    assert await client.patience() == 0
    client.body.put_nowait((b"x" * 1000, True))
    assert await client.patience() == 0
    client.body.put_nowait((b"x" * 1000, False))
    assert await client.patience() == 7, "now the application is silent: 5 s, and 2 s for what it may still read"
    await ended(task)


async def test_who_waits_to_be_read_does_not_hang() -> None:
    client = Slow(read_and_stream)
    task = asyncio.create_task(client.run())
    client.body.put_nowait((b"x", False))
    assert await client.patience() == 0, "the first line"
    client.reads.release()
    assert await client.patience() == 0, "the first event"
    client.reads.release()
    assert await client.patience() == 5, "all was read and nothing more comes"
    await ended(task)


async def test_a_silent_request_beside_a_slow_client_is_a_hang() -> None:
    slow = Slow(read_and_hang)
    task = asyncio.create_task(slow.run())
    assert await slow.patience() == 0
    record = requests.RequestRecord(prompt_bytes=1000)
    slow.metrics.began(record)
    assert slow.metrics.performance()["patience_ms"] == 6000
    slow.metrics.ended(record)
    assert await slow.patience() == 0
    await ended(task)


async def test_a_drain_cuts_who_waits_for_its_client() -> None:
    slow = Slow(read_and_hang)
    slow.reads.release()
    slow.reads.release()
    task = asyncio.create_task(slow.run())
    assert await slow.patience() == 0
    assert slow.middleware.cut() == 1
    await task
    assert slow.metrics.in_flight == 0
    assert slow.metrics.failed == 1
