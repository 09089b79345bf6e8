"""Does what was decided: one method per decision, each logged with its slot and reason before it is done."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

from ling_api import names
from ling_api.v1 import agent_pb2 as pb

from . import decisions as deed
from . import events
from .connection import Refusals
from .engines import TO_WIRE, wire_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .hub import Agent
    from .tickets import Purpose

LOG = logging.getLogger(__name__)
QUIET = (
    deed.Welcome, deed.AnswerAttach, deed.KeepPart, deed.BackUp, deed.SendListener, deed.Members, deed.Answer, deed.Turn
)  # fmt: skip


class Deeds:
    """`do(slot, decision)` never waits: everything goes into queues."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._refusals = Refusals()
        self._table: dict[type, Callable[[str, Any], None]] = {
            deed.Welcome: self._welcome,
            deed.Go: self._go,
            deed.SetRole: self._set_role,
            deed.Stop: self._stop,
            deed.Kill: self._kill,
            deed.Promote: lambda _, d: self._say(d.conn, {"op": "promote", "term": d.term}),
            deed.Turn: lambda _, d: self._send(d.stream, pb.AgentMessage(turn=pb.Turn(busy=d.busy))),
            deed.HoldBack: self._hold_back,
            deed.AnswerAttach: self._answer_attach,
            deed.KeepPart: self._keep_part,
            deed.KeepManifest: self._keep_manifest,
            deed.BackUp: self._back_up,
            deed.DropSet: self._drop_set,
            deed.Listen: self._listen,
            deed.SendListener: self._send_listener,
            deed.DropListener: lambda slot, _: agent.store.drop_listener(slot),
            deed.Answer: lambda _, d: self._say(d.conn, {"op": d.op, "re": d.re}),
            deed.AnswerError: lambda _, d: self._say(d.conn, {"op": "error", "re": d.re, "reason": d.reason}),
            deed.Word: lambda _, d: self._say(d.conn, {"op": "word", "ready": d.ready, "message": d.message}),
            deed.Members: self._members,
            deed.Released: lambda _, d: self._say(d.conn, {"op": "released"}),
        }

    def do(self, slot: str, decision: deed.Decision) -> None:
        level = self._level(slot, decision)
        if LOG.isEnabledFor(level):
            said = " ".join(f"{each.name}={getattr(decision, each.name)!r}" for each in fields(decision))
            LOG.log(level, "slot=%s decision=%s %s", slot, type(decision).__name__, said)
        self._table[type(decision)](slot, decision)

    def _say(self, number: int, message: dict[str, Any], fds: list[int] | None = None) -> None:
        conn = self._agent.connections.get(number)
        if conn is not None:
            conn.put(message, fds or [])

    def _send(self, number: int, message: pb.AgentMessage) -> None:
        stream = self._agent.streams.get(number)
        if stream is not None:
            stream.put(message)

    def _welcome(self, slot: str, decision: deed.Welcome) -> None:
        self._send(
            decision.stream, pb.AgentMessage(welcome=pb.Welcome(term=decision.term, recovering=decision.recovering))
        )

    def _go(self, slot: str, decision: deed.Go) -> None:
        self._send(decision.stream, pb.AgentMessage(go=pb.Go(reason=decision.reason)))

    def _set_role(self, slot: str, decision: deed.SetRole) -> None:
        self._agent.counters.role_changed(decision.role.value)
        role = pb.SetRole(role=TO_WIRE[decision.role], term=decision.term, grace_seconds=decision.grace_seconds)
        self._send(decision.stream, pb.AgentMessage(set_role=role))

    def _stop(self, slot: str, decision: deed.Stop) -> None:
        stop = pb.Stop(exit_code=decision.exit_code, reason=decision.reason)
        self._send(decision.stream, pb.AgentMessage(stop=stop))

    def _kill(self, slot: str, decision: deed.Kill) -> None:
        self._agent.counters.killed(decision.reason.split(":")[0])
        self._send(decision.stream, pb.AgentMessage(kill=pb.Kill(server=decision.server, reason=decision.reason)))

    def _hold_back(self, slot: str, decision: deed.HoldBack) -> None:
        readiness = pb.Readiness(held_back=decision.held_back, reason=decision.reason)
        self._send(decision.stream, pb.AgentMessage(readiness=readiness))

    def _level(self, slot: str, decision: deed.Decision) -> int:
        """Everyday answers are for whoever looks closely; a refusal is told once a minute."""
        if isinstance(decision, deed.AnswerAttach) and isinstance(decision.answer, deed.Refused):
            return self._refusals.level(slot, decision.answer.reason, self._agent.now())
        return logging.DEBUG if isinstance(decision, QUIET) else logging.INFO

    def _answer_attach(self, slot: str, decision: deed.AnswerAttach) -> None:
        agent = self._agent
        stream = agent.streams.get(decision.stream)
        if stream is None:
            return
        now = agent.now()

        def ticket(purpose: str, name: str) -> bytes:
            right = cast("Purpose", purpose)
            return agent.tickets.mint(right, stream.uid, now, server=decision.server, set_=name, stream=stream.number)

        agent.counters.answered(decision.server, decision.answer, now)
        stream.put(wire_answer(decision, ticket))

    def _keep_part(self, slot: str, decision: deed.KeepPart) -> None:
        message, fds = self._agent.store.frame(slot, decision.set, decision.part)
        self._say(decision.conn, {"op": "keep", **message}, fds)

    def _keep_manifest(self, slot: str, decision: deed.KeepManifest) -> None:
        fd = self._agent.store.manifest(slot, decision.set)
        if fd is not None:
            self._say(decision.conn, {"op": "keep-manifest", "set": decision.set}, [fd])

    def _back_up(self, slot: str, decision: deed.BackUp) -> None:
        for message, fds in self._agent.store.frames(slot, decision.set):
            self._say(decision.conn, {"op": "keep", **message}, fds)

    def _drop_set(self, slot: str, decision: deed.DropSet) -> None:
        for conn in decision.conns:
            self._say(conn, {"op": "drop", "set": decision.set})
        self._agent.store.drop(slot, decision.set)
        self._agent.post(slot, events.AgentClosed(set=decision.set))

    def _listen(self, slot: str, decision: deed.Listen) -> None:
        self._say(decision.conn, {"op": "listen", "port": names.SERVE_PORT, "backlog": names.BACKLOG})

    def _send_listener(self, slot: str, decision: deed.SendListener) -> None:
        fd = self._agent.store.listener(slot)
        conn = self._agent.connections.get(decision.conn)
        if fd is None or conn is None:
            return
        message: dict[str, Any] = {"op": "listener"}
        if conn.direction == "rank->agent":
            message["backlog"] = names.BACKLOG
        if decision.re is not None:
            message["re"] = decision.re
        conn.put(message, [fd])

    def _members(self, slot: str, decision: deed.Members) -> None:
        members = {caller.device: asdict(caller) for caller in decision.callers}
        for member in members.values():
            del member["device"]
        self._say(decision.conn, {"op": "members", "members": members, "term": decision.term})
