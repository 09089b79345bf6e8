"""The server as its launcher knows it: id, phase, times, what it attached, its word on performance and metrics.

Translates between the server's control frames and the stream's protobuf messages; decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from ling_api.v1 import agent_pb2 as pb

from .processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

_METRICS_PATIENCE_S = 1.0
_FIELDS = (
    "in_flight", "requests", "output_tokens", "mean_tpot_ms", "mean_ttft_ms", "failed", "mean_accept_length",
    "patience_ms", "proofs", "proof_every_ms", "arrivals", "draft_tokens", "samples", "window_seconds",
)  # fmt: skip


class LaunchedServer:
    """`on_phase(phase)` for every change; `on_attach(request)` when it asks; `on_ended(code)` once."""

    def __init__(
        self,
        *,
        on_phase: Callable[[str], None],
        on_attach: Callable[[int], None],
        on_performance: Callable[[], None],
        on_ended: Callable[[int], None],
    ) -> None:
        self.id = uuid.uuid4().hex
        self.began = time.monotonic()
        self.phase = "started"
        self.phases: dict[str, float] = {}
        self.progress = 0.0
        self.sets: list[str] = []  # all that it ever asked for: it has them attached, or is filling them
        self.pending: dict[int, list[str]] = {}  # attach requests without a final answer; each rank may have one
        self.performance: dict[str, Any] = {}
        self.reason = ""
        self.child = Child(told=self._told, ended=self._on_ended)
        self._on_phase = on_phase
        self._on_attach = on_attach
        self._on_performance = on_performance
        self._on_end = on_ended
        self._scrapes: dict[int, asyncio.Future[str]] = {}
        self._scrape = 0

    def event(self, phase: str | None = None, exit_code: int = 0) -> pb.ServerEvent:
        """What to report now."""
        return pb.ServerEvent(
            server=self.id,
            phase=f"PHASE_{(phase or self.phase).upper()}",
            exit_code=exit_code,
            milliseconds=(time.monotonic() - self.began) * 1000,
            phases=self.phases,
            progress=self.progress,
        )

    def to_proto(self) -> pb.Server:
        return pb.Server(id=self.id, phase=f"PHASE_{self.phase.upper()}", sets=self.sets)

    def attach(self, request: int) -> pb.Attach:
        return pb.Attach(request=request, server=self.id, sets=self.pending[request])

    def performed(self) -> pb.Performance:
        return pb.Performance(**{name: self.performance[name] for name in _FIELDS})

    def answer(self, answer: pb.AttachAnswer) -> None:
        """Relays the agent's word; a final one ends the request."""
        kind = answer.WhichOneof("answer")
        if answer.request not in self.pending or kind is None:
            return
        self.child.put({"op": "answer", "re": answer.request, **_translated(kind, answer)})
        if kind != "wait":
            del self.pending[answer.request]

    def tell_role(self, role: str, term: int, grace_seconds: float) -> None:
        self.child.put({"op": "role", "role": role, "term": term, "grace": grace_seconds})

    def tell_turn(self, busy: bool) -> None:
        self.child.put({"op": "turn", "busy": busy})

    async def metrics(self) -> str:
        """The server's metrics as text; "" when it does not answer in time."""
        self._scrape += 1
        future = self._scrapes[self._scrape] = asyncio.get_running_loop().create_future()
        self.child.put({"op": "metrics", "re": self._scrape})
        try:
            async with asyncio.timeout(_METRICS_PATIENCE_S):
                return str(await future)
        except TimeoutError:
            return ""
        finally:
            self._scrapes.pop(self._scrape, None)

    def _told(self, message: dict[str, Any], fds: list[int]) -> None:
        match message["op"]:
            case "started":
                self._on_phase("started")
            case "phase":
                self.phase, self.phases = message["phase"], message["phases"]
                self.progress = message["progress"]
                self._on_phase(self.phase)
            case "attach":
                self.pending[message["re"]] = message["sets"]
                self.sets += [each for each in message["sets"] if each not in self.sets]
                self._on_attach(message["re"])
            case "performance":
                self.performance = message
                self._on_performance()
            case "metrics":
                future = self._scrapes.get(message["re"])
                if future is not None and not future.done():
                    future.set_result(message["text"])
            case "failed":
                self.reason = message["reason"]

    def _on_ended(self, code: int) -> None:
        for future in self._scrapes.values():
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_result("")
        self._on_end(code)


def _translated(kind: str, answer: pb.AttachAnswer) -> dict[str, Any]:
    if kind == "granted":
        return {"kind": kind, "granted": _tickets(answer.granted.tickets), "tickets": {}}
    if kind == "fill":
        return {"kind": kind, "granted": _tickets(answer.fill.granted), "tickets": _tickets(answer.fill.tickets)}
    if kind == "wait":
        return {"kind": kind, "reason": answer.wait.reason, "progress": answer.wait.progress}
    fields = [[field.field, field.wanted, field.held] for field in answer.refused.fields]
    return {"kind": kind, "reason": answer.refused.reason, "fields": fields}


def _tickets(tickets: Any) -> dict[str, str]:
    return {ticket.set: ticket.ticket.hex() for ticket in tickets}
