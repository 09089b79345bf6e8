"""Tickets: one-time rights, 32 random bytes each, that say who may do one thing within five seconds.

A ticket is bound to a pod and, but for the one that opens a stream, to a server, a set and the stream it was sent on;
it dies with that stream. Kept in memory only: a new agent knows none, and its callers ask again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

LIFE: Final = 5.0  # seconds
SIZE: Final = 32  # bytes
Purpose = Literal["stream", "fetch", "deposit"]


class TicketRefused(Exception):
    """The ticket gives no right to this; the catcher answers with the reason and grants nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    purpose: Purpose
    uid: str  # of the pod
    server: str = ""
    set: str = ""
    stream: int = 0
    conn: int = 0  # the folder connection that a stream ticket was sent on
    until: float = 0.0


class Tickets:
    def __init__(self, source: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._source = source
        self._rights: dict[bytes, Right] = {}

    def __len__(self) -> int:
        return len(self._rights)

    def mint(
        self,
        purpose: Purpose,
        uid: str,
        now: float,
        *,
        server: str = "",
        set_: str = "",
        stream: int = 0,
        conn: int = 0,
    ) -> bytes:
        self._sweep(now)
        ticket = self._source(SIZE)
        self._rights[ticket] = Right(
            purpose=purpose, uid=uid, server=server, set=set_, stream=stream, conn=conn, until=now + LIFE
        )
        return ticket

    def redeem(self, ticket: bytes, purpose: Purpose, uid: str, now: float, *, server: str = "") -> Right:
        """The right, once. Raises TicketRefused; a ticket that somebody else tried stays good for its owner."""
        right = self._rights.get(ticket)
        if right is None:
            raise TicketRefused("the ticket is unknown, used already, or its stream ended: ask for another")
        if right.until <= now:
            del self._rights[ticket]
            raise TicketRefused(f"the ticket is older than {LIFE:g} s: ask for another")
        if purpose != "stream" and right.uid != uid:  # on the stream the ticket itself says which pod it is
            raise TicketRefused("the ticket is another pod's")
        if right.purpose != purpose or (right.server and right.server != server):
            raise TicketRefused(f"the ticket is to {right.purpose} for server {right.server!r}, not to {purpose}")
        del self._rights[ticket]
        return right

    def end_stream(self, stream: int) -> None:
        """Its tickets are worth nothing from now on."""
        for ticket in [ticket for ticket, right in self._rights.items() if right.stream == stream]:
            del self._rights[ticket]

    def _sweep(self, now: float) -> None:
        """Tickets are minted in the order in which they end."""
        for ticket, right in list(self._rights.items()):
            if right.until > now:
                break
            del self._rights[ticket]
