"""What each frame on a folder socket means: checked, turned into an event, answered where the answer is at hand.

Tickets are redeemed here and descriptors pass into the store here; whatever else follows is decided elsewhere.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

from ling_api import fdpass, messages
from ling_api.errors import LingError

from . import choose, events, listener, weights
from .store import closing
from .tickets import Right, TicketRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection
    from .directory import Caller
    from .facts import Slot
    from .hub import Agent

LOG = logging.getLogger(__name__)
Message = dict[str, Any]
MOST_PASSED = 2048  # client connections that wait for an heir to read; the rest is handed back
MAX_SERVERS = 32  # of one pod that are alive at once; one serves, perhaps one more drains
COMPONENTS = {
    "keeper->agent": "slot", "launcher->agent": "engine", "kernels->agent": "engine", "rank->agent": "engine",
}  # fmt: skip


class Frames:
    """`take(connection, message, fds)` owns the descriptors. Raises ProtocolError: the connection then ends."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._ops: dict[str, Callable[[Connection, Message, list[int]], None]] = {
            "have": self._have,
            "have-listener": self._have_listener,
            "members": self._members,
            "ready": self._ready,
            "stored": lambda c, m, f: agent.post(
                c.slot, events.Stored(conn=c.number, set=m["set"], part=m["part"])
            ),
            "stored-manifest": lambda c, m, f: agent.post(
                c.slot, events.ManifestStored(conn=c.number, set=m["set"])
            ),
            "failed": lambda c, m, f: agent.post(
                c.slot, events.StoreFailed(conn=c.number, set=m["set"], reason=m["reason"])
            ),
            "no-listener": lambda c, m, f: agent.post(
                c.slot, events.NoListener(conn=c.number, reason=m["reason"])
            ),
            "dropped": lambda c, m, f: agent.post(c.slot, events.Dropped(conn=c.number, set=m["set"])),
            "leaving": lambda c, m, f: agent.post(c.slot, events.KeeperLeaving(conn=c.number)),
            "fetch": self._fetch,
            "deposit": self._deposit,
            "seal": self._seal,
            "mapped": self._mapped,
            "listener": lambda c, m, f: agent.post(c.slot, events.ListenerAsked(conn=c.number, re=m["re"])),
            "pass": self._pass,
            "jit": lambda c, m, f: agent.jit.asked(c, agent.callers[c.device].namespace, m["key"]),
            "jit-offer": lambda c, m, f: agent.jit.offered(agent.callers[c.device].namespace, m["key"], f.pop()),
            "pulse": self._pulse,
        }  # fmt: skip

    def take(self, conn: Connection, message: Message, fds: list[int]) -> None:
        with closing(fds):
            if not conn.direction:
                self._hello(conn, message, fds)
                return
            messages.validate(conn.direction, message, len(fds))
            if message["op"] == "hello":
                raise fdpass.ProtocolError("hello was said already")
            self._ops[message["op"]](conn, message, fds)

    def _hello(self, conn: Connection, message: Message, fds: list[int]) -> None:
        direction = messages.validate_first(message, len(fds))
        if message["version"] != fdpass.VERSION:
            raise fdpass.ProtocolError(
                f"version {message['version']} of the protocol; this agent speaks {fdpass.VERSION}"
            )
        caller = self._agent.callers.get(conn.device)
        if caller is None:
            self._agent.on_unknown(conn.device)
            raise fdpass.ProtocolError("this pod is not known (yet)")
        if caller.component != COMPONENTS[direction]:
            raise fdpass.ProtocolError(f"a pod of component {caller.component} is no {direction.split('->')[0]}")
        if direction == "kernels->agent":
            conn.direction, conn.uid = direction, caller.uid
            return  # of no slot: nothing is decided by it, and nobody waits for its process's death
        if direction == "rank->agent":
            self._check_rank(caller, message["server"])
        conn.direction, conn.uid, conn.slot = direction, caller.uid, caller.slot
        self._introduce(conn, message, caller)

    def _check_rank(self, caller: Caller, server: str) -> None:
        """A rank's death is its server's: nobody may be a rank of another pod's server, nor of servers without end."""
        slot = self._agent.slots[caller.slot]
        launcher = slot.launcher_of(server=server)
        if launcher is not None and launcher.uid != caller.uid:
            raise fdpass.ProtocolError(f"server {server} is another pod's")
        if len({rank.server for rank in slot.ranks.values() if rank.uid == caller.uid} - {server}) >= MAX_SERVERS:
            raise fdpass.ProtocolError(f"{MAX_SERVERS} other servers of this pod are alive: one of them must end first")

    def _introduce(self, conn: Connection, message: Message, caller: Caller) -> None:
        agent = self._agent
        if conn.direction == "keeper->agent":
            agent.post(conn.slot, events.KeeperHello(conn=conn.number, uid=conn.uid, netns=message["netns"]))
        elif conn.direction == "launcher->agent":
            agent.post(conn.slot, events.LauncherConnected(conn=conn.number, uid=conn.uid, pod=caller.pod))
            ticket = agent.tickets.mint("stream", conn.uid, agent.now(), conn=conn.number)
            conn.put({"op": "ticket", "ticket": ticket.hex(), "jit": True})
        else:
            conn.server, conn.rank = message["server"], message["rank"]
            agent.post(
                conn.slot,
                events.RankConnected(
                    conn=conn.number, uid=conn.uid, server=conn.server, rank=conn.rank,
                    same=agent.calls.same_process(conn.number),
                ),
            )  # fmt: skip
            agent.calls.forget_deaths(conn.slot)
            conn.put({"op": "welcome", "pulse": True})

    def _pulse(self, conn: Connection, message: Message, fds: list[int]) -> None:
        if conn.pulsed:  # also after its hint: each page costs a thread
            raise fdpass.ProtocolError("pulse: this connection has told of its page already")
        conn.pulsed = True
        self._agent.calls.pulses.watch(conn.number, fds.pop(), conn.device)

    # keeper and launcher

    def _ready(self, conn: Connection, message: Message, fds: list[int]) -> None:
        self._agent.post(conn.slot, events.Ready(conn=conn.number))
        self._agent.calls.forget_deaths(conn.slot)

    def _have(self, conn: Connection, message: Message, fds: list[int]) -> None:
        if conn.direction == "launcher->agent" and message["part"] == 0 and not message["manifest"]:
            raise fdpass.ProtocolError("a launcher holds sealed sets only")
        name = message["set"]
        try:
            taken = self._agent.store.give_back(conn.slot, conn.number, message, fds)
        except LingError as error:
            LOG.warning("slot=%s conn=%d set=%s give-back refused: %s", conn.slot, conn.number, name, error)
            conn.put({"op": "drop", "set": name})
            return
        if taken is not None:
            self._agent.post(
                conn.slot,
                events.Has(
                    conn=conn.number, set=name, kind=message["kind"], sealed=taken.sealed, parts=taken.parts,
                    identity=taken.identity,
                ),
            )  # fmt: skip

    def _have_listener(self, conn: Connection, message: Message, fds: list[int]) -> None:
        try:
            with socket.socket(fileno=fds[0]) as sock:
                try:
                    netns = fdpass.netns_cookie(sock)
                    listens = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                finally:
                    sock.detach()
        except OSError as error:
            raise fdpass.ProtocolError(f"have-listener: the descriptor is no socket: {error.strerror}") from error
        if not listens:
            raise fdpass.ProtocolError("have-listener: the socket does not listen")
        slot = self._agent.slots[conn.slot]
        if listener.wanted(slot, netns):
            self._agent.store.keep_listener(conn.slot, fds.pop())
        elif slot.listener != netns:
            return  # of a slot pod that is gone
        self._agent.post(conn.slot, events.ListenerHeld(conn=conn.number, netns=netns))

    def _members(self, conn: Connection, message: Message, fds: list[int]) -> None:
        # the list is for people who look at a keeper: callers come from the directory, which outlives an agent itself
        self._agent.post(conn.slot, events.TermRemembered(term=message.get("term", 0)))

    # ranks

    def _fetch(self, conn: Connection, message: Message, fds: list[int]) -> None:
        right = self._redeem(conn, message, "fetch")
        if right is None:
            return
        frames = list(self._agent.store.frames(conn.slot, right.set))
        if not frames or self._agent.store.manifest(conn.slot, right.set) is None:
            self._error(conn, message, f"the set {right.set} is gone: ask again")
        for fields, own in frames:
            conn.put({"op": "set", "re": message["re"], **fields}, own)

    def _redeem(self, conn: Connection, message: Message, purpose: Any) -> Right | None:
        agent = self._agent
        ticket = bytes.fromhex(message["ticket"])
        try:
            return agent.tickets.redeem(ticket, purpose, conn.uid, agent.now(), server=conn.server)
        except TicketRefused as error:
            self._error(conn, message, str(error))
            return None

    def _error(self, conn: Connection, message: Message, reason: str) -> None:
        conn.note(reason)
        conn.put({"op": "error", "re": message["re"], "reason": reason})

    def _deposit(self, conn: Connection, message: Message, fds: list[int]) -> None:
        name = message["set"]
        if conn.deposits.get(name) != message["ticket"]:
            right = self._redeem(conn, message, "deposit")
            if right is None:
                return
            if right.set != name:
                self._error(conn, message, f"the ticket is for the set {right.set}")
                return
            conn.deposits[name] = message["ticket"]
        more = 0 if self._agent.store.knows(conn.slot, name, fds) else sum(message["sizes"])
        reason = weights.may_deposit(self._slot(conn), name, conn.server, more)
        if reason:
            self._error(conn, message, reason)
            return
        try:
            part = self._agent.store.deposit(conn.slot, name, message["kind"], message["sizes"], fds)
        except LingError as error:
            self._error(conn, message, str(error))
            return
        self._agent.post(
            conn.slot,
            events.Deposited(
                conn=conn.number, re=message["re"], set=name, kind=message["kind"], part=part,
                sizes=tuple(message["sizes"]), last=message["part"] + 1 == message["parts"],
            ),
        )  # fmt: skip

    def _slot(self, conn: Connection) -> Slot:
        return self._agent.slots[conn.slot]

    def _seal(self, conn: Connection, message: Message, fds: list[int]) -> None:
        name = message["set"]
        reason = weights.may_seal(self._slot(conn), name, conn.server)
        if reason:
            self._error(conn, message, reason)
            return
        try:
            self._agent.store.seal(conn.slot, name, fds)
        except LingError as error:
            self._error(conn, message, str(error))
            self._agent.post(conn.slot, events.SealRefused(conn=conn.number, set=name, reason=str(error)))
            return
        self._agent.post(conn.slot, events.Sealed(conn=conn.number, re=message["re"], set=name))

    def _mapped(self, conn: Connection, message: Message, fds: list[int]) -> None:
        self._agent.counters.mapped(conn.server, message["set"], self._agent.now())
        self._agent.post(conn.slot, events.Mapped(conn=conn.number, set=message["set"]))

    def _pass(self, conn: Connection, message: Message, fds: list[int]) -> None:
        slot = self._slot(conn)
        heir = choose.successor(slot, slot.launcher_of(server=conn.server, conn=conn.number))
        target = self._agent.connections.get(heir[1]) if heir is not None else None
        if heir is not None and target is not None and target.has_room(len(fds), MOST_PASSED):
            target.put({"op": heir[0], "count": len(fds)}, fds)
            LOG.info("slot=%s server=%s passed=%d by=%s", conn.slot, conn.server, len(fds), heir[0])
            return
        # never closed silently: clients are on the other end
        if conn.direction == "launcher->agent":
            conn.put({"op": "park", "count": len(fds)}, fds)
            return
        conn.put({"op": "adopt", "count": len(fds)}, fds)
        conn.put({"op": "error", "reason": f"nobody can take {len(fds)} connections now: they are handed back"})
