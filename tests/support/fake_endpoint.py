"""An OpenAI-compatible endpoint of a test: it streams as told, counts as told, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Endpoint:
    """`per_round` tokens come with each chunk, `gap` seconds after the one before. Change it while it runs."""

    url: str = ""
    per_round: int = 4
    gap: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)  # beside the counts
    metrics: bool = True
    stands_still: bool = False  # its counters
    others: int = 0  # tokens that somebody else gets meanwhile
    restarts_at: int = 0  # that request's answer comes from a server that has counted nothing yet
    fails_at: int = 0  # that request ends with an error in its stream
    refuses: str = ""  # a body's field that it does not know
    keep_alive: bool = True
    server_info: dict[str, Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    sent: list[tuple[float, float]] = field(default_factory=list)  # when the first and the last token of an answer went
    connections: int = 0
    tokens: int = 100
    rounds: int = 30
    given: int = 90

    def text(self) -> str:
        return (
            f"ling_output_tokens_total {self.tokens}\nling_verify_rounds_total {self.rounds}\n"
            f"ling_accepted_tokens_total {self.given}\n"
        )

    def count(self, tokens: int, rounds: int) -> None:
        if len(self.bodies) == self.restarts_at:
            self.tokens = self.rounds = self.given = 0
        if self.stands_still:
            return
        self.tokens += tokens + self.others
        self.rounds += rounds
        self.given += tokens - 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    at: Endpoint

    def setup(self) -> None:
        super().setup()
        self.at.connections += 1

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        answers = {"/v1/models": json.dumps({"data": [{"id": "fake"}]})}
        if self.at.metrics:
            answers["/metrics"] = self.at.text()
        if self.at.server_info is not None:
            answers["/server_info"] = json.dumps(self.at.server_info)
        self._whole(200 if self.path in answers else 404, answers.get(self.path, "no such path"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.at.bodies.append(body)
        self.at.keys.add(self.headers.get("Authorization", ""))
        if self.at.refuses and self.at.refuses in body:
            self._whole(400, json.dumps({"error": {"message": f"{self.at.refuses} is not known"}}))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        times = []
        for event in self._events(body["max_tokens"]):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            times += [time.monotonic()] if '"text"' in event else []
        self.at.sent.append((times[0], times[-1]))
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not self.at.keep_alive

    def _events(self, tokens: int) -> Iterator[str]:
        left, rounds, due = tokens, 0, time.monotonic()
        while left:
            took = min(left, self.at.per_round if left < tokens else 1)
            left, rounds, due = left - took, rounds + 1, due + self.at.gap
            time.sleep(max(0.0, due - time.monotonic()))
            if len(self.at.bodies) == self.at.fails_at:
                yield json.dumps({"error": {"message": "out of memory"}})
                return
            yield json.dumps({"choices": [{"text": "x" * took, "finish_reason": None if left else "length"}]})
        self.at.count(tokens, rounds - 1)
        yield json.dumps({"choices": [], "usage": {"completion_tokens": tokens, **self.at.usage}})
        yield "[DONE]"

    def _whole(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = not self.at.keep_alive


@contextlib.contextmanager
def serving(at: Endpoint) -> Iterator[Endpoint]:
    """On a port of its own while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"at": at}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    at.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield at
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
