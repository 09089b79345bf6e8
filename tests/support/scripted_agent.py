"""A node agent for tests of the engine room alone: one slot, the plainest policy, every step visible and stoppable.

It speaks the real protocol on real sockets, in the test's event loop. What it decides by itself (unless switched off):
go for every launcher, fill for the first that asks, granted once sealed, active for the first server that is warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from ling_api import fdpass, messages
from ling_api.memory import base
from ling_api.v1 import agent_pb2 as pb
from ling_api.v1 import agent_pb2_grpc
from ling_engine.channel import Channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass
class Held:
    kind: str
    sizes: list[int]
    fds: list[int]
    manifest: int | None = None


@dataclass
class Pod:
    """One device folder: its launcher's connection and stream, its rank's connection."""

    folder: Path
    launcher: Channel | None = None
    rank: Channel | None = None
    out: asyncio.Queue[pb.AgentMessage] | None = None
    hello: pb.Hello | None = None
    hellos: int = 0
    server: str = ""
    events: list[pb.ServerEvent] = field(default_factory=list)
    asked: list[pb.Attach] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)  # folder frames of launcher and rank
    performance: pb.Performance | None = None
    left: bool = False

    def say(self, **message: Any) -> None:
        assert self.out is not None
        self.out.put_nowait(pb.AgentMessage(**message))

    def role(self, role: int, term: int, grace: float = 5.0) -> None:
        self.say(set_role=pb.SetRole(role=role, term=term, grace_seconds=grace))

    def phase(self) -> int:
        return self.events[-1].phase if self.events else 0

    def ops(self, op: str) -> list[dict[str, Any]]:
        return [one for one in self.received if one["op"] == op]


class ScriptedAgent:
    """`start()` and `stop()` may be called again: a restart that forgets everything but what is given back."""

    def __init__(self, run: Path, *, go: bool = True, promote: bool = True) -> None:
        self.run = run
        self.go = go
        self.promote = promote
        self.answer_attach = True
        self.answer_deposit = True
        self.backlog = 512
        self.listener: socket.socket | None = None
        self.sets: dict[str, Held] = {}
        self.pods: dict[str, Pod] = {}
        self.tickets: dict[str, str] = {}
        self.stream_tickets: dict[bytes, str] = {}
        self.filler = ""
        self.term = 0
        self.active = ""
        self.waiting: list[tuple[Pod, pb.Attach]] = []
        self._closers: list[Any] = []
        self._channels: set[Channel] = set()

    def pod(self, name: str = "d000") -> Pod:
        """The pod of a device; its folder is made on first use (before `start`)."""
        folder = self.run / name
        folder.mkdir(parents=True, exist_ok=True)
        return self.pods.setdefault(name, Pod(folder))

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for name, pod in self.pods.items():
            sock = fdpass.listen(pod.folder / "fd.sock")
            sock.setblocking(False)
            loop.add_reader(sock.fileno(), self._accept, name, sock)
            server = grpc.aio.server()
            agent_pb2_grpc.add_NodeAgentServicer_to_server(_Servicer(self, name), server)
            server.add_insecure_port(f"unix:{pod.folder / 'agent.sock'}")
            await server.start()
            self._closers.append((sock, server))

    async def stop(self) -> None:
        """Like a death: connections end, what was held in memory is forgotten (its fds closed)."""
        loop = asyncio.get_running_loop()
        for sock, _ in self._closers:
            loop.remove_reader(sock.fileno())
            sock.close()
        for channel in list(self._channels):
            channel.close()
        self._channels.clear()
        await asyncio.gather(*(server.stop(0) for _, server in self._closers))
        self._closers.clear()
        for held in self.sets.values():
            fdpass.close_all([*held.fds, *([] if held.manifest is None else [held.manifest])])
        self.sets.clear()
        self.tickets.clear()
        self.waiting.clear()
        self.filler = ""

    def listen(self) -> int:
        """Makes the slot's listener; returns its port."""
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(self.backlog)
        return int(self.listener.getsockname()[1])

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()

    # folder sockets

    def _accept(self, name: str, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        pod = self.pods[name]
        kind: list[str] = []

        def frame(message: dict[str, Any], fds: list[int]) -> None:
            if not kind:
                kind.append(messages.validate_first(message, len(fds)).split("->")[0])
            else:
                messages.validate(f"{kind[0]}->agent", message, len(fds))
            pod.received.append(message)
            (self._from_rank if kind[0] == "rank" else self._from_launcher)(pod, channel, message, fds)

        channel = Channel(sock, frame, lambda: self._channels.discard(channel))
        self._channels.add(channel)

    def _from_launcher(self, pod: Pod, channel: Channel, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "hello":
            pod.launcher = channel
            ticket = secrets.token_bytes(32)
            self.stream_tickets[ticket] = pod.folder.name
            channel.put({"op": "ticket", "ticket": ticket.hex()})
        elif message["op"] == "have":
            manifest = fds.pop(0) if message["manifest"] else None
            if message["set"] in self.sets:
                fdpass.close_all(fds)
            else:
                self.sets[message["set"]] = Held(message["kind"], message["sizes"], list(fds), manifest)
        else:
            fdpass.close_all(fds)

    def _from_rank(self, pod: Pod, channel: Channel, message: dict[str, Any], fds: list[int]) -> None:
        match message["op"]:
            case "hello":
                pod.rank = channel
                channel.put({"op": "welcome"})
            case "listener" if self.listener is not None:
                frame = {"op": "listener", "re": message["re"], "backlog": self.backlog}
                channel.put(frame, [self.listener.fileno()])
            case "listener":
                channel.put({"op": "error", "re": message["re"], "reason": "no listener"})
            case "deposit":
                if self.tickets.pop(message["ticket"], "") != message["set"]:
                    channel.put({"op": "error", "re": message["re"], "reason": "no such ticket"})
                    fdpass.close_all(fds)
                    return
                self.sets[message["set"]] = Held(message["kind"], message["sizes"], list(fds))
                if self.answer_deposit:
                    channel.put({"op": "stored", "re": message["re"]})
            case "fetch":
                self._hand_over(channel, message)
            case "seal":
                self._seal(channel, message, fds[0])
            case "pass":
                self._pass_on(pod, fds)

    def _hand_over(self, channel: Channel, message: dict[str, Any]) -> None:
        name = self.tickets.pop(message["ticket"], "")
        held = self.sets.get(name)
        if held is None or held.manifest is None:
            channel.put({"op": "error", "re": message["re"], "reason": "no such ticket"})
            return
        readers = [base.holder(held.kind).reader(fd) for fd in held.fds]
        frame = {"op": "set", "re": message["re"], "set": name, "kind": held.kind, "sizes": held.sizes}
        channel.put({**frame, "part": 0, "parts": 1, "manifest": True}, [held.manifest, *readers])
        fdpass.close_all(readers)

    def _seal(self, channel: Channel, message: dict[str, Any], manifest: int) -> None:
        held = self.sets[message["set"]]
        for fd in held.fds:
            base.holder(held.kind).seal(fd)
        held.manifest = manifest
        channel.put({"op": "sealed", "re": message["re"]})
        self.filler = ""
        for pod in self.pods.values():
            if pod.launcher is not None and not pod.launcher.closed:
                self.back_up(pod, message["set"])
        for pod, attach in self.waiting:
            self.answer(pod, attach)
        self.waiting.clear()

    def back_up(self, pod: Pod, name: str) -> None:
        held = self.sets[name]
        assert pod.launcher is not None
        assert held.manifest is not None
        frame = {"op": "keep", "set": name, "kind": held.kind, "sizes": held.sizes, "part": 0, "parts": 1}
        pod.launcher.put({**frame, "manifest": True}, [held.manifest, *held.fds])

    def _pass_on(self, source: Pod, fds: list[int]) -> None:
        target = self.pods.get(self.active)
        if target is not None and target is not source and target.rank is not None:
            target.rank.put({"op": "adopt", "count": len(fds)}, fds)
        else:
            for pod in self.pods.values():
                if pod is not source and pod.launcher is not None:
                    pod.launcher.put({"op": "park", "count": len(fds)}, fds)
                    break
        fdpass.close_all(fds)

    # streams

    def answer(self, pod: Pod, attach: pb.Attach) -> None:
        answer = pb.AttachAnswer(request=attach.request)
        missing = [one for one in attach.sets if one not in self.sets or self.sets[one].manifest is None]
        granted = [pb.Tickets(ticket=self._ticket(one), set=one) for one in attach.sets if one not in missing]
        if not missing:
            answer.granted.tickets.extend(granted)
        elif self.filler in ("", attach.server):
            self.filler = attach.server
            answer.fill.tickets.extend(pb.Tickets(ticket=self._ticket(one), set=one) for one in missing)
            answer.fill.granted.extend(granted)
        else:
            answer.wait.reason = "filled by another"
            self.waiting.append((pod, attach))
        pod.say(attach_answer=answer)

    def _ticket(self, name: str) -> bytes:
        ticket = secrets.token_bytes(32)
        self.tickets[ticket.hex()] = name
        return ticket

    def received(self, pod: Pod, message: pb.LauncherMessage) -> None:
        match message.WhichOneof("message"):
            case "attach":
                pod.asked.append(message.attach)
                if self.answer_attach:
                    self.answer(pod, message.attach)
            case "server_event":
                self._event(pod, message.server_event)
            case "leaving":
                pod.left = True
            case "performance":
                pod.performance = message.performance

    def _event(self, pod: Pod, event: pb.ServerEvent) -> None:
        pod.events.append(event)
        if event.phase == pb.PHASE_EXITED and self.active == pod.folder.name:
            self.active = ""
        if event.phase == pb.PHASE_EXITED and self.filler == event.server:
            self.filler = ""
        if event.phase == pb.PHASE_WARM and self.promote and not self.active:
            self.promote_now(pod)

    def promote_now(self, pod: Pod) -> None:
        self.term += 1
        self.active = pod.folder.name
        pod.role(pb.ROLE_ACTIVE, self.term)


class _Servicer(agent_pb2_grpc.NodeAgentServicer):  # type: ignore[misc]
    def __init__(self, agent: ScriptedAgent, name: str) -> None:
        self._agent = agent
        self._name = name

    async def Engine(self, requests: AsyncIterator[pb.LauncherMessage], context: Any) -> AsyncIterator[pb.AgentMessage]:
        pod = self._agent.pods[self._name]
        hello = (await anext(aiter(requests))).hello
        assert self._agent.stream_tickets.pop(hello.ticket, "") == self._name
        pod.hello, pod.out = hello, asyncio.Queue()
        pod.hellos += 1
        out = pod.out
        out.put_nowait(pb.AgentMessage(welcome=pb.Welcome()))
        if self._agent.go and not hello.HasField("server"):
            out.put_nowait(pb.AgentMessage(go=pb.Go(reason="scripted")))
        reading = asyncio.create_task(self._read(pod, requests))
        try:
            while True:
                yield await out.get()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, pod: Pod, requests: AsyncIterator[pb.LauncherMessage]) -> None:
        async for message in requests:
            self._agent.received(pod, message)


def open_fds(pid: int) -> dict[int, str]:
    """What a process holds: descriptor -> what it is."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(path.name)] = str(path.readlink())
    return found
