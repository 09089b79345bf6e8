"""The agent: one loop that takes events into the slots' facts and does what follows from them.

An event is reduced at once, decisions are made a moment later for all events that came meanwhile. Nothing here waits:
frames and stream messages go into queues. Start and stop are the only coroutines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import grpc.aio

from ling_api import fdpass, names
from ling_api.v1 import agent_pb2_grpc

from . import acceptqueue, events
from .attention import Attention
from .calls import Calls
from .decide import decide, reduce
from .deeds import Deeds
from .engines import Engines, Stream
from .facts import Slot
from .folders import Folders
from .frames import Frames
from .jitdesk import JitDesk
from .ledger import Ledger
from .metrics import Counters, Snapshot
from .release import Control
from .status import build_status
from .store import Store
from .tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .directory import Caller, SlotSpec
    from .status import Publisher

LOG = logging.getLogger(__name__)
QUEUE_LOOK = 1.0  # seconds between two looks at the listeners' queues
STATUS_DELAY = 0.02  # seconds: what changes together is published together
# Whoever has a device may connect: who says nothing is let go soon. A launcher has one stream.
_GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 3000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_concurrent_streams", 4),
)


class Agent:
    """Owns every socket, descriptor and fact. All methods on the loop's thread."""

    def __init__(
        self,
        run_dir: Path,
        publisher: Publisher,
        *,
        node: str = "",
        devices: int = names.DEVICES,
        recover_min: float = 1.0,
        recover_max: float = 10.0,
        cache_dir: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.now = monotonic
        self.slots: dict[str, Slot] = {}
        self.callers: Mapping[str, Caller] = {}
        self.streams: dict[int, Stream] = {}
        self.store = Store()
        self.jit = JitDesk(cache_dir or run_dir / "jit")
        self.tickets = Tickets()
        self.counters = Counters()
        self.on_unknown: Callable[[str], None] = lambda device: None  # somebody calls whom the directory lacks
        self._run_dir = run_dir
        self._publisher = publisher
        self._node = node
        self._recover = (recover_min, recover_max)
        self._ledger = Ledger(run_dir)
        self._wall = wall
        self._number = 0
        self._statuses: dict[str, dict[str, Any]] = {}
        self._dirty: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._publishing: dict[str, asyncio.TimerHandle] = {}
        self._deeds = Deeds(self)
        self.calls = Calls(self, Frames(self).take)
        self.connections = self.calls.connections
        self._folders = Folders(run_dir, devices, self.calls.called)
        self._server: grpc.aio.Server | None = None
        self._status_server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._attention = Attention(monotonic(), QUEUE_LOOK)
        self._control = Control(run_dir, self.slots, self.post)

    async def start(self) -> None:
        """Opens all sockets. Raises OSError, RuntimeError when a socket cannot be bound."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._folders.open()
        self._server = grpc.aio.server(options=_GRPC_OPTIONS)
        agent_pb2_grpc.add_NodeAgentServicer_to_server(Engines(self), self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self._folders.agent_socket}")
        await self._server.start()
        self._folders.link_agent()
        status = fdpass.listen(self._run_dir / names.STATUS_SOCKET, mode=0o600)
        self._status_server = await asyncio.start_unix_server(self._tell_status, sock=status)
        await self._control.start()
        self._attention.seen(self.now())
        self._look_at_queues()
        LOG.info("event=started run=%s", self._run_dir)

    async def stop(self) -> None:
        """Closes everything; engines and keepers keep what they hold and wait for the next agent."""
        for timer in (*self._timers.values(), *self._publishing.values()):
            timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._status_server is not None:
            self._status_server.close()
        self._control.stop()
        self._folders.close()
        for conn in tuple(self.connections.values()):
            conn.close()
        for stream in tuple(self.streams.values()):
            stream.close()
        if self._server is not None:
            await self._server.stop(0.2)
        self.calls.close()
        self.store.close()
        for timer in (*self._timers.values(), *self._publishing.values()):
            timer.cancel()
        LOG.info("event=stopped")

    # what the node's edges say

    def callers_changed(self, callers: Mapping[str, Caller]) -> None:
        """The whole map by device. Connections of pods that are no longer in it end."""
        self.callers = dict(callers)
        uids = {caller.uid for caller in callers.values()}
        for conn in tuple(self.connections.values()):
            if conn.uid and conn.uid not in uids:
                conn.close()
        for stream in tuple(self.streams.values()):
            if stream.uid not in uids:
                self.end_stream(stream)
        by_slot: dict[str, list[Caller]] = {name: [] for name in self.slots}
        for caller in callers.values():
            by_slot.setdefault(caller.slot, []).append(caller)
        for name, own in by_slot.items():
            ordered = tuple(sorted(own, key=lambda caller: caller.device))
            if self._slot(name).callers != ordered:
                self.post(name, events.CallersChanged(callers=ordered))

    def slots_changed(self, slots: Mapping[str, SlotSpec]) -> None:
        """The whole map by name; a slot that is missing is deleted."""
        self._control.forget_all_but(slots)
        for name in {*slots, *self.slots}:
            slot, spec = self._slot(name), slots.get(name)
            if (spec is None and not slot.gone) or (spec is not None and (slot.spec != spec or slot.gone)):
                leaves_by = spec.leaves_by if spec is not None else None
                if leaves_by is not None:
                    leaves_by += self.now() - self._wall()
                self.post(name, events.SpecChanged(spec=spec, leaves_by=leaves_by))

    def renew_folder(self, device: str) -> Path:
        """Makes a device's folder ready for its next pod; connections of the former one end. Returns the folder."""
        for conn in tuple(self.connections.values()):
            if conn.device == device:
                conn.close()
        return self._folders.renew(device)

    def pod_of(self, uid: str) -> str:
        return next((caller.pod for caller in self.callers.values() if caller.uid == uid), "")

    def snapshot(self) -> Snapshot:
        return Snapshot(
            slots=dict(self.slots),
            counters=self.counters,
            open_fds=self.store.open_fds,
            streams=len(self.streams),
            connections=len(self.connections),
        )

    # events and decisions

    def post(self, name: str, event: events.Event) -> None:
        """Takes an event into the slot's facts now; decides soon."""
        before = self._slot(name)
        self.slots[name] = reduce(before, event, self.now())
        if self.slots[name] is before:
            return
        self.counters.deaths_between(before, self.slots[name])
        self.counters.timings.seen(before, self.slots[name], self.now())
        if name not in self._dirty:  # each slot by itself: what goes wrong in one is no other's trouble
            self._dirty.add(name)
            asyncio.get_running_loop().call_soon(self._decide, name)

    def _look_at_queues(self) -> None:
        """A process that is stopped accepts nothing and says nothing: the kernel knows who waits for it."""
        self._looking = asyncio.get_running_loop().call_later(QUEUE_LOOK, self._look_at_queues)
        self._look_at_clock()
        for name, slot in tuple(self.slots.items()):
            fd = self.store.listener(name)
            accepts = fd is not None and any(each.accepting for each in slot.launchers.values())
            waiting = acceptqueue.waiting(fd) if fd is not None and accepts else 0
            if waiting or slot.queue_since is not None:
                self.post(name, events.QueueSeen(waiting=waiting))

    def _look_at_clock(self) -> None:
        """Timers that are due because we were held up must not be taken for the silence of engines."""
        if self._attention.seen(self.now()):
            LOG.warning("event=held-up slots=%d", len(self.slots))
            for name in tuple(self.slots):
                self.post(name, events.HeldUp())

    def _slot(self, name: str) -> Slot:
        if name not in self.slots:
            least, most = self._recover
            slot = Slot(name=name, since=self.now(), recover_min=least, recover_max=most)
            self.slots[name] = replace(slot, released=self._control.released(name), doomed=self._ledger.of(name))
        return self.slots[name]

    def _decide(self, name: str) -> None:
        self._dirty.discard(name)
        if name not in self.slots:
            return
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        self._look_at_clock()
        now = self.now()
        before = self.slots[name]
        slot, decisions, wake = decide(before, now)
        self.slots[name] = slot
        self._ledger.keep(name, {} if slot.gone else slot.doomed)
        self.counters.timings.seen(before, slot, now)
        for decision in decisions:
            self._deeds.do(name, decision)
        if wake is not None:
            self._timers[name] = asyncio.get_running_loop().call_later(max(0.0, wake - now) + 0.001, self._decide, name)
        if name not in self._publishing:
            self._publishing[name] = asyncio.get_running_loop().call_later(STATUS_DELAY, self._publish, name)

    def _publish(self, name: str) -> None:
        del self._publishing[name]
        slot = self.slots.get(name)
        if slot is None or self._forgotten(slot):
            return
        previous = self._statuses.get(name)
        status = build_status(slot, node=self._node, previous=previous, now=self._wall(), monotonic=self.now())
        if status != previous:
            self._statuses[name] = status
            self._publisher.publish(name, status)

    def _forgotten(self, slot: Slot) -> bool:
        """A slot of which nothing is left is nothing to know of."""
        if not slot.gone or slot.sets or slot.callers or slot.launchers or slot.keeper or slot.ranks:
            return False
        self.store.drop_listener(slot.name)
        self.slots.pop(slot.name, None)
        self._statuses.pop(slot.name, None)
        timer = self._timers.pop(slot.name, None)
        if timer is not None:
            timer.cancel()
        return True

    # streams

    def next_number(self) -> int:
        """For connections and streams, unique among both."""
        self._number += 1
        return self._number

    def open_stream(self, slot: str, uid: str) -> Stream:
        stream = Stream(self.next_number(), slot, uid)
        self.streams[stream.number] = stream
        return stream

    def end_stream(self, stream: Stream) -> None:
        """Idempotent: its tickets die, its launcher is without a stream."""
        if self.streams.pop(stream.number, None) is None:
            return
        stream.close()
        self.tickets.end_stream(stream.number)
        if stream.slot in self.slots:
            self.post(stream.slot, events.StreamGone(stream=stream.number))

    async def _tell_status(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One JSON document for each connection: what `ling-nodeagent status` prints."""
        writer.write(json.dumps(self.describe(), indent=2).encode())
        try:
            await writer.drain()
        except ConnectionError as error:
            LOG.debug("status reader left: %s", error)
        writer.close()

    def describe(self) -> dict[str, Any]:
        """All slots' statuses, who has which device, and what is open."""
        wall = self._wall()
        return {
            "node": self._node,
            "slots": {
                name: build_status(
                    slot, node=self._node, previous=self._statuses.get(name), now=wall, monotonic=self.now()
                )
                for name, slot in sorted(self.slots.items())
            },
            "callers": {device: asdict(caller) for device, caller in sorted(self.callers.items())},
            "openFds": self.store.open_fds,
            "streams": len(self.streams),
            "connections": len(self.connections),
        }
