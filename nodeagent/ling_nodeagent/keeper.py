"""The one process of a slot pod: it holds what must outlive engines and agents, and decides nothing.

Held here: the slot's weight sets (keeper_memory.py), its listening socket, its membership list (device -> pod) and
term, and by the pod's existence the slot's claim on memory and GPUs. After every (re)connect all of it is given back to
the node agent (frames: docs/protocol.md); the agent's last word answers the pod's readiness probe.

It outlives releases, so it loads the standard library and `ling_api.fdpass` only; a test looks at its sys.modules.
One loop talks to the agent and populates memory slice by slice; the kubelet's probes have threads.
`python -m ling_nodeagent.keeper leave` is the pod's preStop: it returns when the slot's memory is free.
"""

import ipaddress
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ling_api import fdpass
from ling_nodeagent.keeper_memory import Memory
from ling_nodeagent.keeper_probes import Probe, Probes, leave

LOG = logging.getLogger("ling.keeper")
TICK = 0.1  # seconds between two attempts to connect, and until a signal is noticed
OPS = ("keep", "keep-manifest", "drop", "listen", "listener", "members", "word", "released", "error")


class BadEnvironment(Exception):
    """A variable that the keeper cannot use; main() prints the one line and exits 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    run_dir: str
    address: str
    port: int | None  # None: the port that the agent says
    probe_port: int

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Read LING_RUN, LING_ADDRESS, LING_PORT and LING_PROBE_PORT; BadEnvironment says what to write instead."""
        run_dir, address = env.get("LING_RUN", "/run/ling"), env.get("LING_ADDRESS", "0.0.0.0")
        ports = {name: env[name] for name in ("LING_PORT", "LING_PROBE_PORT") if name in env}
        if not run_dir.startswith("/"):
            raise BadEnvironment(f"LING_RUN is {run_dir!r}: write the absolute path of the agent's folder")
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            raise BadEnvironment(f"LING_ADDRESS is {address!r}: write an IPv4 address such as 0.0.0.0") from None
        for name, text in ports.items():
            if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
                raise BadEnvironment(f"{name} is {text!r}: write a port number from 1 to 65535")
        port = int(ports["LING_PORT"]) if "LING_PORT" in ports else None
        return cls(run_dir=run_dir, address=address, port=port, probe_port=int(ports.get("LING_PROBE_PORT", "8002")))


def bind(address: str, port: int, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


class Keeper:
    """All state, and the connection to the agent. A method `_on_OP` acts on one op and owns its descriptors."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.selector = selectors.DefaultSelector()
        self.probes = Probes((settings.address, settings.probe_port), Probe)
        self.probes.keeper = self
        self.netns = fdpass.netns_cookie(self.probes.socket)
        self.memory = Memory()
        self.listener: socket.socket | None = None
        self.members: dict[str, Any] | None = None  # and the term
        self.word = (False, "the node agent has not answered yet")
        self.stopping = self.leaving = self.told = False  # SIGTERM; preStop or SIGTERM; and this agent knows it
        self.released = threading.Event()
        self.agent: tuple[socket.socket, fdpass.Reader, fdpass.Writer] | None = None
        self.reconnect_at = 0.0
        self.complaint = ""
        self.ops = {op: getattr(self, "_on_" + op.replace("-", "_")) for op in OPS}

    def run(self) -> None:
        """Serve until SIGTERM and the agent's `released` have both come."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        threading.Thread(target=self.probes.serve_forever, daemon=True, name="probes").start()
        LOG.info("event=started run=%s probe_port=%d", self.settings.run_dir, self.settings.probe_port)
        while not (self.stopping and self.released.is_set()):
            if self.agent is None and time.monotonic() >= self.reconnect_at:
                self._connect()
            if self.leaving and not self.told:
                self._tell_leaving()
            for key, mask in self.selector.select(0 if self.memory.populating else TICK):
                key.data(mask)
            self._tell(self.memory.step())
        LOG.info("event=stopped")

    def _terminate(self, *_: object) -> None:
        self.stopping = self.leaving = True

    def _connect(self) -> None:
        self.reconnect_at = time.monotonic() + TICK
        try:
            agent = fdpass.connect(f"{self.settings.run_dir}/fd.sock", timeout=TICK)
        except OSError as error:
            self._complain(f"cannot reach the node agent: {error}")
            return
        agent.setblocking(False)
        self.agent = (agent, fdpass.Reader(agent), fdpass.Writer(agent))
        self.selector.register(agent, selectors.EVENT_READ, self._agent_ready)
        self._say({"op": "hello", "version": fdpass.VERSION, "kind": "keeper", "netns": self.netns})
        for message, fds in self.memory.give_back():
            self._say(message, fds)
        if self.listener is not None:
            self._say({"op": "have-listener", "netns": self.netns}, [self.listener.fileno()])
        if self.members is not None:
            self._say({"op": "members", **self.members})
        if self.leaving:
            self._tell_leaving()
        self._say({"op": "ready"})

    def _tell_leaving(self) -> None:
        self.told = self.agent is not None
        self._say({"op": "leaving"})

    def _tell(self, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            self._say(message)

    def _say(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self.agent is not None:  # else the give-back after the next connect says it
            try:
                self.agent[2].put(message, fds)
            except OSError as error:
                self._disconnect(f"cannot duplicate descriptors: {error}")
            self._flush()

    def _flush(self) -> None:
        if self.agent is None:
            return
        try:
            mask = selectors.EVENT_READ | (0 if self.agent[2].flush() else selectors.EVENT_WRITE)
        except OSError as error:
            self._disconnect(f"lost the node agent: {error}")
        else:
            self.selector.modify(self.agent[0], mask, self._agent_ready)

    def _agent_ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if self.agent is None or not mask & selectors.EVENT_READ:
            return
        frames: list[tuple[dict[str, Any], list[int]]] = []
        try:
            frames = self.agent[1].read()
            while frames:
                self._act(*frames.pop(0))
        except (OSError, fdpass.ProtocolError) as error:
            for _, fds in frames:
                fdpass.close_all(fds)
            self._disconnect(f"lost the node agent: {error}")

    def _act(self, message: dict[str, Any], fds: list[int]) -> None:
        try:
            if not isinstance(message.get("set", ""), str):
                raise TypeError("set")
            self.ops[message["op"]](message, fds)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            fdpass.close_all(fds)
            raise fdpass.ProtocolError(f"op {message.get('op')!r} is not what the protocol says: {error!r}") from error

    def _disconnect(self, reason: str) -> None:
        if self.agent is not None:
            self._complain(reason)
            agent, reader, writer = self.agent
            self.selector.unregister(agent)
            for thing in (reader, writer, agent):
                thing.close()
            self.agent, self.told = None, False

    def _complain(self, reason: str) -> None:
        if reason != self.complaint:  # once, not ten times a second
            LOG.warning("event=agent-away reason=%r", reason)
        self.complaint = reason

    def _on_keep(self, message: dict[str, Any], fds: list[int]) -> None:
        self._tell(self.memory.keep(message, fds))

    def _on_keep_manifest(self, message: dict[str, Any], fds: list[int]) -> None:
        (manifest,) = fds
        self._tell(self.memory.keep_manifest(message["set"], manifest))

    def _on_drop(self, message: dict[str, Any], fds: list[int]) -> None:
        self._tell(self.memory.drop(message["set"]))

    def _on_listen(self, message: dict[str, Any], fds: list[int]) -> None:
        where, backlog = (self.settings.address, self.settings.port or int(message["port"])), int(message["backlog"])
        if self.listener is None:
            try:
                self.listener = bind(*where, backlog)
            except OSError as error:
                reason = f"cannot listen on {where[0]}:{where[1]}: {error.strerror}"
                self._say({"op": "no-listener", "reason": reason})
                return
        self._say({"op": "have-listener", "netns": self.netns}, [self.listener.fileno()])

    def _on_listener(self, message: dict[str, Any], fds: list[int]) -> None:
        (fd,) = fds
        listener = socket.socket(fileno=fd)
        if fdpass.netns_cookie(listener) != self.netns:
            self._say({"op": "no-listener", "reason": "that listener is of another network namespace"})
            listener.close()
        elif self.listener is not None:
            listener.close()
        else:
            self.listener = listener

    def _on_members(self, message: dict[str, Any], fds: list[int]) -> None:
        self.members = {"members": dict(message["members"]), "term": int(message.get("term", 0))}

    def _on_word(self, message: dict[str, Any], fds: list[int]) -> None:
        self.word = (bool(message["ready"]), str(message["message"]))

    def _on_released(self, message: dict[str, Any], fds: list[int]) -> None:
        self.released.set()

    def _on_error(self, message: dict[str, Any], fds: list[int]) -> None:
        raise fdpass.ProtocolError(f"it answered {message['reason']}")


def main(arguments: Sequence[str]) -> int:
    if arguments not in ((), ("leave",)):
        sys.stderr.write(f"keeper: {' '.join(arguments)!r} is no command: write nothing, or leave\n")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s keeper %(levelname)s %(message)s")
    try:
        settings = Settings.from_env(os.environ)
        if arguments:
            return leave(settings.probe_port)
        fdpass.allow_many()
        keeper = Keeper(settings)
    except BadEnvironment as error:
        sys.stderr.write(f"keeper: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"keeper: cannot listen for probes (LING_ADDRESS, LING_PROBE_PORT): {error.strerror}\n")
        return 2
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
