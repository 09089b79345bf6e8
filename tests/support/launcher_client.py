"""A torch-free launcher, as little as the node agent needs to see of an engine pod; on the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from tests.support.rank_client import TIMEOUT, TestSet
from tests.support.wire import wire_set

from ling_api import fdpass, messages
from ling_api.v1 import agent_pb2 as pb
from ling_api.v1 import agent_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(kw_only=True)
class LauncherClient:
    """Folder connection and stream of one engine pod, on the loop; keeps back-ups as a launcher does."""

    folder: Path
    pod: str = "engine"
    revision: str = "aaaaaaaa"
    _one_write: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    weights: Sequence[TestSet] = ()
    plan: Mapping[str, int] = field(default_factory=dict)
    purpose: int = pb.PURPOSE_SERVE
    role: int = pb.ROLE_GATED
    term: int = 0
    server: str = ""
    phase: int = pb.PHASE_UNSPECIFIED
    held: dict[str, dict[int, tuple[dict[str, Any], list[int]]]] = field(default_factory=dict)
    listener: int | None = None
    parked: list[int] = field(default_factory=list)
    heard: list[pb.AgentMessage] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def open(self) -> LauncherClient:
        """Folder hello, give-back, stream hello; returns once welcomed."""
        self._ticket: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._sock = await self._connect()
        self._reader, self._writer = fdpass.Reader(self._sock), fdpass.Writer(self._sock)
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)
        self._put({"op": "hello", "version": fdpass.VERSION, "kind": "launcher"})
        ticket = await asyncio.wait_for(self._ticket, TIMEOUT)
        for parts in self.held.values():
            for message, fds in parts.values():
                self._put({**message, "op": "have"}, fds)
        if self.listener is not None:
            self._put({"op": "have-listener", "netns": 0}, [self.listener])
        self._put({"op": "ready"})
        self._channel = grpc.aio.insecure_channel(
            f"unix:{self.folder / 'agent.sock'}", options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.call = agent_pb2_grpc.NodeAgentStub(self._channel).Engine()
        await self.call.write(pb.LauncherMessage(hello=self.hello(ticket)))
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: self.last("welcome") is not None)
        return self

    async def _connect(self) -> Any:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    sock = fdpass.connect(self.folder / "fd.sock")
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                sock.setblocking(False)
                return sock

    def hello(self, ticket: bytes) -> pb.Hello:
        server = None
        if self.server:
            server = pb.Server(id=self.server, phase=self.phase, sets=[each.id for each in self.weights])
        return pb.Hello(
            ticket=ticket, revision=self.revision, runtime="test", purpose=self.purpose,
            plan=pb.Plan(private_bytes=dict(self.plan)), weights=[wire_set(each) for each in self.weights],
            role=self.role, server=server, term=self.term,
        )  # fmt: skip

    async def say(self, **message: Any) -> None:
        async with self._one_write:  # a stream takes one write at a time; two ranks may ask at once
            await self.call.write(pb.LauncherMessage(**message))

    async def event(self, phase: int, **fields: Any) -> None:
        self.phase = phase
        await self.say(server_event=pb.ServerEvent(server=self.server, phase=phase, **fields))

    async def attach(self, request: int = 1, *, wait: bool = True) -> pb.AttachAnswer | None:
        """Asks for all sets; the first answer, Wait included."""
        sets = [each.id for each in self.weights]
        await self.say(attach=pb.Attach(request=request, server=self.server, sets=sets))
        if not wait:
            return None
        return await self.answer(request)

    async def answer(self, request: int = 1, *, final: bool = False) -> pb.AttachAnswer:
        """The last answer to that request; with `final`, one that is no Wait."""

        def look() -> pb.AttachAnswer | None:
            answers = [m.attach_answer for m in self.heard if m.WhichOneof("message") == "attach_answer"]
            answers = [a for a in answers if a.request == request]
            if final:
                answers = [a for a in answers if a.WhichOneof("answer") != "wait"]
            return answers[-1] if answers else None

        return await self.until(look)

    def last(self, kind: str) -> Any:
        found = [m for m in self.heard if m.WhichOneof("message") == kind]
        return getattr(found[-1], kind) if found else None

    async def until[T](self, look: Callable[[], T]) -> T:
        """Waits for a truthy value of `look`, asked again after everything that is heard."""
        async with asyncio.timeout(TIMEOUT):
            while not (value := look()):
                self._changed.clear()
                await self._changed.wait()
        return value

    async def expect(self, kind: str) -> Any:
        """Waits for the next message of that kind and takes it out."""

        def look() -> Any:
            found = [m for m in self.heard if m.WhichOneof("message") == kind]
            return found[0] if found else None

        message = await self.until(look)
        self.heard.remove(message)
        return getattr(message, kind)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in self.call:
                self.heard.append(message)
                self._changed.set()

    def _put(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self._writer.put(message, fds)
        self._writer.flush()

    def _readable(self) -> None:
        try:
            frames = self._reader.read()
        except OSError:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            return
        for message, fds in frames:
            messages.validate("agent->launcher", message, len(fds))
            getattr(self, "_on_" + message["op"])(message, fds)
        self._changed.set()

    def _on_ticket(self, message: dict[str, Any], fds: list[int]) -> None:
        self._ticket.set_result(bytes.fromhex(message["ticket"]))

    def _on_keep(self, message: dict[str, Any], fds: list[int]) -> None:
        old = self.held.setdefault(message["set"], {}).get(message["part"])
        if old is not None:
            fdpass.close_all(old[1])
        self.held[message["set"]][message["part"]] = (message, fds)
        self._put({"op": "stored", "set": message["set"], "part": message["part"]})

    def _on_drop(self, message: dict[str, Any], fds: list[int]) -> None:
        for _, held in self.held.pop(message["set"], {}).values():
            fdpass.close_all(held)
        self._put({"op": "dropped", "set": message["set"]})

    def _on_listener(self, message: dict[str, Any], fds: list[int]) -> None:
        if self.listener is not None:
            os.close(self.listener)
        (self.listener,) = fds

    def _on_park(self, message: dict[str, Any], fds: list[int]) -> None:
        self.parked += fds

    def _on_error(self, message: dict[str, Any], fds: list[int]) -> None:
        self.errors.append(message["reason"])

    @property
    def open_now(self) -> bool:
        """Whether there are connections to end."""
        sock = getattr(self, "_sock", None)
        return sock is not None and sock.fileno() >= 0

    async def break_off(self) -> None:
        """Ends both connections; the back-ups stay."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._channel.close()
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._reader.close()
        self._writer.close()
        self._sock.close()
        self.heard.clear()

    async def close(self) -> None:
        await self.break_off()
        for name in list(self.held):
            for _, fds in self.held.pop(name).values():
                fdpass.close_all(fds)
        fdpass.close_all(self.parked)
        if self.listener is not None:
            os.close(self.listener)
            self.listener = None
