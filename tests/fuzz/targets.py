"""Every parser of ours that reads what somebody else wrote into a socket, as a function of bytes.

A target may raise what its docstring promises and nothing else. What it accepts must survive a round trip, where the
format has one. Corpus: one folder a target; `python -m tests.fuzz.run TARGET` looks for more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry

from ling_api import fdpass, messages
from ling_api.errors import BadInput
from ling_api.identity import Identity
from ling_api.manifest import Manifest
from ling_api.v1 import agent_pb2 as pb
from ling_bench import stream as bench_stream
from ling_bench.errors import EndpointFailed
from ling_engine.probes import Probes
from ling_engine.reference import openai_request
from ling_engine.reference.openai_error import ApiError
from ling_engine.reference.openai_request import Offer
from ling_engine.reference.tokenizer import ByteTokenizer
from ling_nodeagent import engines, events
from ling_nodeagent.decide import decide, reduce
from ling_nodeagent.directory import Caller, SlotSpec
from ling_nodeagent.endpoints import Endpoints
from ling_nodeagent.facts import Slot
from ling_nodeagent.release import Control
from ling_nodeagent.status import build_status
from ling_operator import server
from ling_operator.page import Page, loopback

if TYPE_CHECKING:
    from collections.abc import Callable

OFFER: Final = Offer(model="m", context=64, vocabulary=300, tokenizer=ByteTokenizer(bos=256, eos=257))
NOW: Final = 100.0


def frame(data: bytes) -> None:
    """The folder socket's frames, in every direction. ProtocolError, PeerGone."""
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            there.send(data[: 64 << 10])
        there.shutdown(socket.SHUT_WR)
        reader = fdpass.Reader(here)
        with contextlib.suppress(fdpass.ProtocolError, fdpass.PeerGone):
            while True:
                for message, fds in reader.read():
                    fdpass.close_all(fds)
                    _validated(message)
        reader.close()


def _validated(message: dict[str, Any]) -> None:
    assert fdpass.decode(fdpass.encode(message)[fdpass.HEADER.size :]) == message
    with contextlib.suppress(fdpass.ProtocolError):
        messages.validate_first(message, 0)
    for direction in messages.SHAPES:
        for fds in range(3):
            with contextlib.suppress(fdpass.ProtocolError):
                messages.validate(direction, message, fds)


def manifest(data: bytes) -> None:
    """A manifest from a launcher, keeper or rank. BadInput."""
    with contextlib.suppress(BadInput):
        read = Manifest.from_bytes(data)
        assert Manifest.from_bytes(read.to_bytes()) == read


def identity(data: bytes) -> None:
    """An identity in a Hello. BadInput."""
    with contextlib.suppress(BadInput):
        assert Identity.from_bytes(data).to_bytes() == data


def hello(data: bytes) -> None:
    """A launcher's first message on its stream, and what the agent makes of it. BadInput."""
    with contextlib.suppress(DecodeError, BadInput):
        event = engines.hello_event(pb.Hello.FromString(data), uid="uid-e", pod="e")
        _lives(_slot(), event(1))


def stream(data: bytes) -> None:
    """What a launcher says after that: one message after a length of two bytes, as long as there are any."""
    slot, at = _slot(), 0
    greeting = engines.hello_event(pb.Hello(revision="a" * 8), uid="uid-e", pod="e")
    slot = _lives(slot, greeting(1))
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        with contextlib.suppress(DecodeError):
            event = engines.event_of(1, pb.LauncherMessage.FromString(data[at + 2 : at + 2 + size]))
            if event is not None:
                slot = _lives(slot, event)
        at += 2 + size


def _slot() -> Slot:
    spec = SlotSpec(
        name="ns/s", deployment="d", revision="a" * 8, revisions=frozenset({"a" * 8}), capacity=1 << 30,
        grace_seconds=5.0, hold_seconds=5.0,
    )  # fmt: skip
    engine = Caller(
        device="d001", namespace="ns", pod="e", uid="uid-e", slot="ns/s", component="engine", revision="a" * 8
    )  # fmt: skip
    slot = Slot(name="ns/s", since=0.0)
    for event in (
        events.SpecChanged(spec=spec),
        events.CallersChanged(callers=(engine,)),
        events.LauncherConnected(conn=1, uid="uid-e", pod="e"),
        events.Ready(conn=1),
    ):
        slot = _lives(slot, event)
    return slot


def _lives(slot: Slot, event: events.Event) -> Slot:
    """The next facts, decided upon; the API server takes the status that follows from them."""
    slot, _, _ = decide(reduce(slot, event, NOW), NOW)
    json.dumps(build_status(slot, node="n", previous=None, now=NOW), allow_nan=False)
    return slot


def probes(data: bytes) -> None:
    """The heads of requests to launcher, agent and operator. What a stream reader raises."""
    with _loop() as loop:
        loop.run_until_complete(_heads(data))


async def _heads(data: bytes) -> None:
    async def fine() -> tuple[int, str]:
        return 200, "ok\n"

    status, _ = await Probes({"/livez": fine})._answer(data)
    assert status in (200, 400, 404, 405)
    assert Endpoints.__dict__["_answer"](_Bare(), data.split(b" ", 2)[1:2])[0][:3] in ("200", "404", "503")
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    with contextlib.suppress(ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await server._read_request(reader)


class _Bare:
    """An agent's endpoints without metrics."""

    def _ready(self) -> str:
        return ""

    @property
    def _registry(self) -> Any:
        return CollectorRegistry()


@contextlib.contextmanager
def _loop() -> Any:
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def completion(data: bytes) -> None:
    """The body of /v1/completions. ApiError."""
    with contextlib.suppress(ApiError):
        asked = openai_request.completion(data, OFFER, 1)
        assert 0 < len(asked.prompt) < OFFER.context


def chat(data: bytes) -> None:
    """The body of /v1/chat/completions. ApiError."""
    with contextlib.suppress(ApiError):
        asked = openai_request.chat(data, OFFER, 1)
        assert 0 < len(asked.prompt) < OFFER.context


def page(data: bytes) -> None:
    """The head of a request to the operator's page, up to the empty line. Only a loopback name is answered."""
    head = data.decode("latin-1")
    out = _Out()
    with _loop() as loop, contextlib.suppress(ConnectionResetError):
        loop.run_until_complete(Page(_nothing)._answer(head, out))  # type: ignore[arg-type]
    status = out.text.split(b" ", 2)[1]
    assert status in (b"200", b"403", b"404")
    assert (status == b"403") != loopback(head)


async def _nothing() -> dict[str, Any]:
    return {}


class _Out:
    """What the page writes to; a stream of events has nobody who reads it, and ends."""

    def __init__(self) -> None:
        self.text = b""
        self.transport = self

    def write(self, data: bytes) -> None:
        self.text += data

    async def drain(self) -> None:
        if b"text/event-stream" in self.text:
            raise ConnectionResetError


def answer(data: bytes) -> None:
    """Lines of a stream of server-sent events, as ling-bench reads them. EndpointFailed."""
    lines = tuple((float(at), line) for at, line in enumerate(data.split(b"\n")))
    with contextlib.suppress(EndpointFailed):
        told = bench_stream.read(bench_stream.Raw(began=0.0, lines=lines))
        assert told.tokens > 0
        assert all(isinstance(one, int | None) for one in (told.prompt_tokens, told.cached_tokens, told.rounds))


def control(data: bytes) -> None:
    """A line of `ling-nodeagent release` to its agent: an answer that is JSON, and no slot but those of the node."""
    posted: list[str] = []
    desk = Control(
        Path(CORPUS) / "no-such-folder", {"ns/s": Slot(name="ns/s", since=0.0)}, lambda name, _: posted.append(name)
    )
    told = json.loads(json.dumps(desk.obey(data)))
    assert told.get("slots", []) == posted
    assert ("error" in told) != ("slots" in told)
    assert set(posted) <= {"ns/s"}


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    one.__name__: one
    for one in (frame, manifest, identity, hello, stream, probes, completion, chat, page, answer, control)
}
CORPUS: Final = os.path.join(os.path.dirname(__file__), "corpus")  # noqa: PTH118, PTH120 - atheris wants text
