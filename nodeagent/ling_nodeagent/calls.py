"""Who is on the folder sockets: their connections, and the deaths of their processes, which outlive connections.

A folder takes so many connections and no more: one pod cannot use up the node's descriptors.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ling_api import fdpass

from . import events
from .connection import Connection, Deaths, Refusals
from .pulses import Pulses

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from .hub import Agent

LOG = logging.getLogger(__name__)
CROWD = 64  # connections of one folder; a server of 8 ranks with its launcher needs 9


class Calls:
    """`take(connection, message, fds)` gets every frame."""

    def __init__(self, agent: Agent, take: Callable[[Connection, dict[str, Any], list[int]], None]) -> None:
        self.connections: dict[int, Connection] = {}
        self._agent = agent
        self._take = take
        self._deaths = Deaths(self._died)
        self.pulses = Pulses(self._dying)
        self._refusals = Refusals()
        self._watched: dict[int, str] = {}  # slot of each ended connection whose process's death is awaited

    def called(self, device: str, sock: socket.socket) -> None:
        """A new connection in that device's folder."""
        try:
            pidfd = fdpass.peer_pidfd(sock)
        except OSError:
            sock.close()
            return
        if not admit([conn for conn in self.connections.values() if conn.device == device]):
            LOG.warning("device=%s refused=%r", device, f"more than {CROWD} connections")
            fdpass.close_all([pidfd])
            sock.close()
            return
        number = self._agent.next_number()
        self.connections[number] = Connection(
            number, device, sock, on_frame=self._take, on_end=self._ended, refusals=self._refusals,
            crowd=lambda: self._waiting(device),
        )  # fmt: skip
        self._deaths.watch(number, pidfd)

    def _waiting(self, device: str) -> int:
        return sum(conn.waiting for conn in self.connections.values() if conn.device == device)

    def same_process(self, number: int) -> frozenset[int]:
        """The connections, ended ones too, of the process behind that one."""
        return self._deaths.same(number)

    def forget_deaths(self, name: str) -> None:
        """No longer waits for what the slot's facts do not: a later connection has taken its place."""
        slot = self._agent.slots[name]
        for number in [n for n, its in self._watched.items() if its == name]:
            if number not in slot.former and number not in slot.ranks:
                del self._watched[number]
                self._deaths.forget(number)
                self.pulses.forget(number)

    def close(self) -> None:
        """Watches nobody any more."""
        self._deaths.close()
        self.pulses.close()

    def _ended(self, conn: Connection) -> None:
        self.connections.pop(conn.number, None)
        self._agent.store.forget_connection(conn.number)
        self.pulses.forget(
            conn.number
        )  # a hint is worth nothing without the connection: what it left is delivered first
        if not conn.slot:  # it never said who it is: nobody waits for its death
            self._deaths.forget(conn.number)
            return
        self._watched[conn.number] = conn.slot
        self._agent.post(conn.slot, events.Disconnected(conn=conn.number))

    def _dying(self, number: int) -> None:
        """A hint: what it left behind is delivered, its memory is not free yet."""
        conn = self.connections.get(number)
        if conn is not None and conn.slot:
            conn.drain()
            self._agent.post(conn.slot, events.DeathHinted(conn=number))

    def _died(self, number: int) -> None:
        self.pulses.forget(number)
        conn = self.connections.get(number)
        if conn is not None:
            conn.drain()
            conn.close()
        slot = self._watched.pop(number, "")
        if slot in self._agent.slots:
            self._agent.post(slot, events.PeerDead(conn=number))


def admit(others: Sequence[Connection]) -> bool:
    """Whether one more connection of a folder is taken, `others` (oldest first) being there.

    In a crowd the oldest that never said who it is must go; there is no room if all have.
    """
    if len(others) < CROWD:
        return True
    idle = next((conn for conn in others if not conn.direction), None)
    if idle is not None:
        idle.refuse(f"more than {CROWD} connections of this pod: those that say no hello are closed")
    return idle is not None
