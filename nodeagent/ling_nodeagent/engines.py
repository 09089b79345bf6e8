"""The gRPC side: one stream per launcher, messages to events and decisions to messages. Nothing is decided here."""

from __future__ import annotations

import asyncio
import logging
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from ling_api.errors import BadInput
from ling_api.identity import Identity, set_id
from ling_api.v1 import agent_pb2 as pb
from ling_api.v1 import agent_pb2_grpc

from . import decisions as do
from . import events
from .connection import Refusals
from .facts import Performance, Phase, Role, Wanted
from .tickets import TicketRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from .hub import Agent

LOG = logging.getLogger(__name__)
HELLO_PATIENCE = 5.0  # seconds; a stream ticket lives no longer

LONGEST_REASON: Final = 500  # characters of it in the log
MOST_GPUS: Final = 64  # of a slot: LingSlot.status takes no more
UUID_LENGTH: Final = 64  # at most, of a GPU's

ROLES: Final[Mapping[int, Role]] = MappingProxyType({
    pb.ROLE_UNSPECIFIED: Role.GATED, pb.ROLE_GATED: Role.GATED, pb.ROLE_WARM: Role.WARM,
    pb.ROLE_ACTIVE: Role.ACTIVE, pb.ROLE_DRAINING: Role.DRAINING,
})  # fmt: skip
TO_WIRE: Final[Mapping[Role, pb.Role]] = MappingProxyType({
    Role.GATED: pb.ROLE_GATED, Role.STARTING: pb.ROLE_GATED, Role.WARM: pb.ROLE_WARM,
    Role.ACTIVE: pb.ROLE_ACTIVE, Role.DRAINING: pb.ROLE_DRAINING,
})  # fmt: skip
PHASES: Final[Mapping[int, Phase]] = MappingProxyType({
    pb.PHASE_STARTED: Phase.STARTED, pb.PHASE_FILLING: Phase.FILLING, pb.PHASE_ATTACHED: Phase.ATTACHED,
    pb.PHASE_WARM: Phase.WARM, pb.PHASE_ACCEPTING: Phase.ACCEPTING, pb.PHASE_DRAINING: Phase.DRAINING,
    pb.PHASE_EXITED: Phase.EXITED,
})  # fmt: skip


class Stream:
    """One launcher's stream: `put` never waits."""

    def __init__(self, number: int, slot: str, uid: str) -> None:
        self.number = number
        self.slot = slot
        self.uid = uid
        self.out: asyncio.Queue[pb.AgentMessage | None] = asyncio.Queue()

    def put(self, message: pb.AgentMessage) -> None:
        self.out.put_nowait(message)

    def close(self) -> None:
        """Ends the stream after what was put."""
        self.out.put_nowait(None)


class Engines(agent_pb2_grpc.NodeAgentServicer):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._refusals = Refusals()

    async def Engine(
        self, messages: AsyncIterator[pb.LauncherMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """A stream's whole life; a bad first message ends it with INVALID_ARGUMENT or PERMISSION_DENIED."""
        first = await _first(messages)
        if first is None or first.WhichOneof("message") != "hello":
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")
            return
        try:
            stream = self._open(first.hello)
        except TicketRefused as error:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
            return
        except BadInput as error:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        reading = asyncio.create_task(self._read(stream, messages))
        try:
            while (message := await stream.out.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()
            self._agent.end_stream(stream)

    async def _refuse(self, context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, reason: str) -> None:
        """Says why, here too, and ends the stream."""
        level = self._refusals.level("stream", reason, self._agent.now())
        LOG.log(level, "stream refused=%r code=%s", reason[:LONGEST_REASON], code.name)
        await context.abort(code, reason)

    def _open(self, hello: pb.Hello) -> Stream:
        agent = self._agent
        right = agent.tickets.redeem(hello.ticket, "stream", "", agent.now())
        conn = agent.connections.get(right.conn)
        if conn is None:
            raise TicketRefused("the ticket's folder connection has ended: ask for another")
        event = hello_event(hello, uid=right.uid, pod=agent.pod_of(right.uid))
        stream = agent.open_stream(conn.slot, right.uid)
        agent.post(conn.slot, event(stream.number))
        return stream

    async def _read(self, stream: Stream, messages: AsyncIterator[pb.LauncherMessage]) -> None:
        try:
            async for message in messages:
                event = event_of(stream.number, message)
                if event is not None:
                    self._agent.post(stream.slot, event)
        finally:
            stream.close()


async def _first(messages: AsyncIterator[pb.LauncherMessage]) -> pb.LauncherMessage | None:
    try:
        async with asyncio.timeout(HELLO_PATIENCE):
            return await anext(messages, None)
    except TimeoutError:
        return None


def hello_event(hello: pb.Hello, *, uid: str, pod: str) -> Callable[[int], events.LauncherHello]:
    """Hello as an event, once the stream has a number. Raises BadInput for what makes no sense."""
    weights = tuple(_wanted(each) for each in hello.weights)
    live = hello.HasField("server")
    if live and not hello.server.id:
        raise BadInput("Hello.server has no id")
    return lambda stream: events.LauncherHello(
        stream=stream,
        uid=uid,
        pod=pod,
        revision=hello.revision,
        serves=hello.purpose != pb.PURPOSE_FILL,
        plan=dict(hello.plan.private_bytes),
        device_bytes=hello.device_bytes,
        gpus=tuple(one[:UUID_LENGTH] for one in hello.gpus[:MOST_GPUS]),
        weights=weights,
        role=ROLES.get(hello.role, Role.GATED),
        term=hello.term,
        server=hello.server.id if live else "",
        phase=PHASES.get(hello.server.phase) if live else None,
        sets=tuple(hello.server.sets) if live else (),
    )


def _wanted(each: pb.WeightSet) -> Wanted:
    identity = Identity.from_bytes(each.identity)
    if identity.digest != each.digest or identity.role != each.role:
        raise BadInput(f"the weight set {each.role}/{each.rank} has the digest {each.digest[:8]}, which is another's")
    return Wanted(
        set=set_id(each.digest, each.rank), role=each.role, rank=each.rank, nbytes=each.bytes, identity=each.identity
    )


def event_of(stream: int, message: pb.LauncherMessage) -> events.Event | None:
    """A message after Hello as an event; None for one of a later release."""
    match message.WhichOneof("message"):
        case "attach":
            ask = message.attach
            return events.AttachAsked(stream=stream, request=ask.request, server=ask.server, sets=tuple(ask.sets))
        case "server_event":
            return _server_changed(stream, message.server_event)
        case "leaving":
            return events.Leaving(stream=stream)
        case "performance":
            seen = message.performance
            return events.Performed(
                stream=stream,
                performance=Performance(
                    in_flight=seen.in_flight, requests=seen.requests, output_tokens=seen.output_tokens,
                    tpot_ms=_number(seen.mean_tpot_ms), ttft_ms=_number(seen.mean_ttft_ms), failed=seen.failed,
                    accept_length=_number(seen.mean_accept_length), proofs=seen.proofs,
                    patience_ms=_number(seen.patience_ms), proof_every_ms=_number(seen.proof_every_ms),
                    arrivals=seen.arrivals, draft_tokens=seen.draft_tokens, samples=seen.samples,
                    window_seconds=_number(seen.window_seconds),
                ),
            )  # fmt: skip
    return None


def _server_changed(stream: int, said: pb.ServerEvent) -> events.ServerChanged | None:
    phase = PHASES.get(said.phase)
    if phase is None:
        return None
    phases = {name: _number(ms) for name, ms in said.phases.items()} or {phase.value: _number(said.milliseconds)}
    progress = min(1.0, _number(said.progress))
    return events.ServerChanged(
        stream=stream, server=said.server, phase=phase, exit_code=said.exit_code, phases=phases, progress=progress
    )


def _number(value: float) -> float:
    """What an engine measured, or 0 for what is no measurement: the API server takes no NaN and no infinity."""
    return value if 0 <= value < math.inf else 0.0


def wire_answer(answer: do.AnswerAttach, ticket: Callable[[str, str], bytes]) -> pb.AgentMessage:
    """An attach answer; `ticket(purpose, set)` mints."""

    def tickets(purpose: str, sets: tuple[str, ...]) -> list[pb.Tickets]:
        return [pb.Tickets(ticket=ticket(purpose, each), set=each) for each in sets]

    out = pb.AttachAnswer(request=answer.request)
    match answer.answer:
        case do.Granted(sets=sets):
            out.granted.CopyFrom(pb.Granted(tickets=tickets("fetch", sets)))
        case do.Fill(sets=sets, granted=granted):
            out.fill.CopyFrom(pb.Fill(tickets=tickets("deposit", sets), granted=tickets("fetch", granted)))
        case do.Wait(reason=reason, progress=progress):
            out.wait.CopyFrom(pb.Wait(reason=reason, progress=progress))
        case do.Refused(reason=reason, fields=fields):
            differ = [pb.FieldDifference(field=name, wanted=wanted, held=held) for name, wanted, held in fields]
            out.refused.CopyFrom(pb.Refused(reason=reason, fields=differ))
    return pb.AgentMessage(attach_answer=out)
