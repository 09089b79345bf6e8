"""A runtime without torch: pattern bytes for weights, a clock for a decoder. `--runtime tests.support.standin:RUNTIME`.

`standin.json` in the model folder may set the fields of `Shape`; without it the defaults hold. Every byte of the
weights follows from the seed, and the application looks at them in every request, so wrong bytes are seen as a failed
request. A test stops a server at a step by a file `STEP.hold` in the folder LING_STANDIN_GATES: the server writes
`STEP.reached` and goes on when the hold is gone. Steps: describe, open, bind, load (after half of the bytes), loaded,
warm-up. A request whose body has `"hold": "NAME"` stays in flight, without a token, while the file NAME.hold is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ling_api.errors import AttachCheckFailed, BadInput, DeviceError
from ling_api.identity import Identity
from ling_api.manifest import TensorSpec, plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_api.memoryplan import MemoryPlan
from ling_engine import requests
from ling_engine.runtime import Description, SetDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from ling_api.manifest import Layout, TensorEntry
    from ling_api.memory.base import Mapping
    from ling_engine.runtime import ModelSettings

_BLOCK = 1 << 16
_GATE_POLL_S = 0.01
KERNELS = "ab" * 32  # what those of `COMPILING` depend on


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a model folder's standin.json may set."""

    nbytes: int = 4 << 20  # of all tensors together
    tensors: int = 8
    seed: int = 0
    chunk_seconds: float = 0.0  # delay per MiB that is filled
    token_seconds: float = 0.005
    plan_bytes: int = 16 << 20
    fail_at: str = ""  # step at which an exception is raised
    children: int = 0  # processes that the server starts, each in a session of its own
    crash_after: int = 0  # the server aborts when it has answered this many requests


def shape_of(path: Path) -> Shape:
    """Raises BadInput when standin.json makes no sense."""
    file = path / "standin.json"
    if not file.exists():
        return Shape()
    try:
        return Shape(**json.loads(file.read_text()))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{file}: {error}") from error


def write_model(path: Path, **fields: Any) -> Path:
    """Makes a model folder; returns it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "standin.json").write_text(json.dumps(fields))
    return path


def gate(step: str) -> None:
    """Stops here while a test holds the step."""
    folder = os.environ.get("LING_STANDIN_GATES")
    if folder is None:
        return
    hold = Path(folder) / f"{step}.hold"
    if hold.exists():
        (Path(folder) / f"{step}.reached").write_text(str(os.getpid()))
        while hold.exists():
            time.sleep(_GATE_POLL_S)


def pattern(seed: int, name: str) -> bytes:
    """The block that a tensor's bytes repeat."""
    return random.Random(f"{seed}:{name}").randbytes(_BLOCK)


def content_of(shape: Shape) -> str:
    """The sha256 that a full load returns."""
    return hashlib.sha256(f"standin {shape.seed} {shape.nbytes} {shape.tensors}".encode()).hexdigest()


class Twin:
    """The only weight set: role target, rank 0."""

    role = "target"
    rank = 0

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._mapping: Mapping | None = None
        self._tensors: tuple[TensorEntry, ...] = ()

    def specs(self) -> Sequence[TensorSpec]:
        size = max(self._shape.nbytes // self._shape.tensors, 1)
        return [TensorSpec(f"layer.{n}.weight", "uint8", (size,), (1,)) for n in range(self._shape.tensors)]

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        gate("bind")
        if [tensor.name for tensor in layout.tensors] != [spec.name for spec in self.specs()]:
            raise AttachCheckFailed("the layout is of another model")
        self._mapping, self._tensors = mapping, layout.tensors

    def load(self, progress: Callable[[float], None]) -> str:
        assert self._mapping is not None
        written = 0
        total = sum(tensor.nbytes for tensor in self._tensors)
        held = False
        for tensor in self._tensors:
            block = pattern(self._shape.seed, tensor.name)
            for at in range(0, tensor.nbytes, 1 << 20):
                size = min(1 << 20, tensor.nbytes - at)
                data = block * (size // _BLOCK + 1)
                self._mapping.buffer(tensor.offset + at, size)[:] = data[:size]
                written += size
                progress(written / total)
                time.sleep(self._shape.chunk_seconds * size / (1 << 20))
                if not held and written * 2 >= total:
                    held = True
                    gate("load")
                    _fail(self._shape, "load")
        gate("loaded")
        return content_of(self._shape)

    def wrong_bytes(self, *, whole: bool = False) -> str:
        """The name of a tensor that holds something else than its pattern, or ""; by default looks at its end."""
        assert self._mapping is not None
        for tensor in self._tensors:
            block = pattern(self._shape.seed, tensor.name)
            for at in range(0, tensor.nbytes, 1 << 20) if whole else [(tensor.nbytes - 1) // (1 << 20) * (1 << 20)]:
                size = min(1 << 20, tensor.nbytes - at)
                data = block * (size // _BLOCK + 1)
                if self._mapping.buffer(tensor.offset + at, size) != memoryview(data)[:size]:
                    return tensor.name
        return ""


class Model:
    """A server's model."""

    def __init__(self, settings: ModelSettings, shape: Shape) -> None:
        self._settings = settings
        self._shape = shape
        self._twin = Twin(shape)
        self.twins = [self._twin]

    def warm_up(self) -> None:
        gate("warm-up")
        _fail(self._shape, "warm-up")
        wrong = self._twin.wrong_bytes(whole=True)
        if wrong:
            raise AttachCheckFailed(f"tensor {wrong} holds wrong bytes")

    def prove(self) -> None:
        gate("prove")
        if self._twin.wrong_bytes() or _told_wrong():
            raise DeviceError("a parked server generates the token 1 where 0 is known")

    def app(self) -> ASGIApp:
        return Application(self._settings, self._shape, self._twin)


class Application:
    """/v1/completions and /v1/chat/completions, streaming or not; `token_seconds` in the body overrides the clock."""

    def __init__(self, settings: ModelSettings, shape: Shape, twin: Twin) -> None:
        self._settings = settings
        self._shape = shape
        self._twin = twin
        self._waiting = 0
        self._answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["path"] == "/v1/models":
            await _json(send, 200, {"object": "list", "data": [{"id": self._settings.served_name, "object": "model"}]})
        elif scope["path"] not in ("/v1/completions", "/v1/chat/completions") or scope["method"] != "POST":
            await _json(send, 404, {"error": {"message": "not found", "type": "not_found"}})
        elif self._waiting > self._settings.max_queue:
            body = {"error": {"message": "queue full", "type": "overloaded"}}
            await _json(send, 429, body, (b"retry-after", b"1"))
        else:
            self._waiting += 1
            try:
                await self._complete(await _body(receive), send)
            finally:
                self._waiting -= 1
            self._answered += 1
            if self._answered == self._shape.crash_after:
                os.abort()

    async def _complete(self, raw: bytes, send: Send) -> None:
        try:
            body = json.loads(raw)
            tokens = int(body.get("max_tokens", 4))
            seconds = float(body.get("token_seconds", self._shape.token_seconds))
            hold = str(body.get("hold", ""))
        except (ValueError, AttributeError, TypeError):
            await _json(send, 400, {"error": {"message": "the body must be a JSON object", "type": "bad_request"}})
            return
        wrong = self._twin.wrong_bytes()
        if wrong:
            await _json(send, 500, {"error": {"message": f"tensor {wrong} holds wrong bytes", "type": "wrong_bytes"}})
            return
        await _held(hold)
        text = f"seed {self._shape.seed} pid {os.getpid()} "
        if body.get("stream"):
            await self._stream(send, text, tokens, seconds)
            return
        for _ in range(tokens):
            await asyncio.sleep(seconds)
            requests.current().token()
        choice = {"index": 0, "text": text + "x" * tokens, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        await _json(send, 200, {"object": "text_completion", "choices": [choice], "usage": usage})

    async def _stream(self, send: Send, text: str, tokens: int, seconds: float) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(tokens):
            await asyncio.sleep(seconds)
            requests.current().token()
            choice = {"index": 0, "text": text if number == 0 else "x"}
            data = f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


class Standin:
    """The runtime."""

    name = "standin"
    native_threads = False

    def preload(self, settings: ModelSettings) -> None:
        """Nothing to import; everything is."""

    def describe(self, settings: ModelSettings) -> Description:
        gate("describe")
        shape = shape_of(settings.path)
        _fail(shape, "describe")
        memory = MemfdMemory()
        layout = plan_layout(Twin(shape).specs(), granularity=memory.granularity, max_region=memory.max_region)
        fields = {"runtime": self.name, "seed": shape.seed, "nbytes": shape.nbytes, "tensors": shape.tensors}
        identity = Identity.of("target", {**fields, "revision": settings.revision})
        one = SetDescription(role="target", rank=0, identity=identity, nbytes=layout.nbytes)
        return Description(sets=(one,), plan=MemoryPlan(private={"buffers": shape.plan_bytes}))

    def open(self, settings: ModelSettings) -> Model:
        gate("open")
        shape = shape_of(settings.path)
        _fail(shape, "open")
        for _ in range(shape.children):
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        return Model(settings, shape)


class Compiling(Standin):
    """One that compiles kernels, or says so. A further step: `preload`."""

    def kernels(self, settings: ModelSettings) -> str:
        return KERNELS

    def preload(self, settings: ModelSettings) -> None:
        gate("preload")

    def describe(self, settings: ModelSettings) -> Description:
        return replace(super().describe(settings), jit=KERNELS)


async def _held(name: str) -> None:
    folder = os.environ.get("LING_STANDIN_GATES")
    while name and folder is not None and (Path(folder) / f"{name}.hold").exists():
        await asyncio.sleep(_GATE_POLL_S)


def _told_wrong() -> bool:
    """Whether a test has corrupted this pod's servers: a file `corrupt` among the gates."""
    folder = os.environ.get("LING_STANDIN_GATES")
    return folder is not None and (Path(folder) / "corrupt").exists()


def _fail(shape: Shape, step: str) -> None:
    if shape.fail_at == step:
        raise BadInput(f"told to fail at {step}")


async def _body(receive: Receive) -> bytes:
    data = b""
    while True:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body"):
            return data


async def _json(send: Send, status: int, value: Any, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(value).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


RUNTIME = Standin()
COMPILING = Compiling()
