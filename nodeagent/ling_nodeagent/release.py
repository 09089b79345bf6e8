"""`ling-nodeagent release`: a slot's memory is given back by hand, and later allowed again.

A descriptor of GPU memory blocks a reset, a driver's removal and MIG changes without showing as a process. Released, a
slot drains its engines, drops every weight set and starts nothing until it is undone; the slot pod keeps its claim and
its address. A file in the run folder, a tmpfs, remembers it for the next agent: somebody may be at the GPU just then.
The command's side speaks over a socket that only the node's root reaches.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from ling_api import fdpass
from ling_api.errors import AgentUnreachable, BadInput

from . import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from .facts import Slot

LOG = logging.getLogger(__name__)
SOCKET: Final = "control.sock"
FILE: Final = "released.json"
LONGEST: Final = 64 << 10  # bytes of a request
PATIENCE: Final = 5.0  # seconds for an answer
PAUSE: Final = 0.2  # seconds between two looks


class Control:
    """The agent's side: one JSON line in, one out. `post` takes an event into a slot's facts."""

    def __init__(self, run_dir: Path, slots: Mapping[str, Slot], post: Callable[[str, events.Event], None]) -> None:
        self._run_dir = run_dir
        self._slots = slots
        self._post = post
        self._released = self._written = _read(run_dir / FILE)
        self._server: asyncio.Server | None = None

    def released(self, name: str) -> bool:
        """Whether the slot was released, by this agent or the one before."""
        return name in self._released

    def forget_all_but(self, slots: Iterable[str]) -> None:
        """The others are deleted, perhaps while no agent was there: the next slot of such a name is another."""
        self._remember(self._released.intersection(slots))

    def _remember(self, now: frozenset[str]) -> None:
        """What cannot be written is told, and holds for this agent; it is tried again with the next word."""
        self._released = now
        if now == self._written:
            return
        new = self._run_dir / f"{FILE}.new"
        try:
            new.write_text(json.dumps(sorted(now)))
            new.replace(self._run_dir / FILE)
        except OSError as error:
            LOG.warning("event=not-remembered file=%s reason=%r", self._run_dir / FILE, str(error))
        else:
            self._written = now

    async def start(self) -> None:
        """Raises OSError."""
        sock = fdpass.listen(self._run_dir / SOCKET, mode=0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=LONGEST)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                answer = self.obey(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            LOG.debug("event=control-dropped error=%s", error)
        finally:
            writer.close()

    def obey(self, line: bytes) -> dict[str, Any]:
        """The answer to a request: the slots concerned, or what is wrong with it."""
        try:
            asked = json.loads(line)
            slots, gpus, on = asked["slots"], asked["gpus"], asked["on"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {"error": "a request is a JSON object with `slots`, `gpus` and `on`"}
        if not (_texts(slots) and _texts(gpus)):
            return {"error": "`slots` and `gpus` are lists of names; both null is all"}
        try:
            names = chosen(self._slots, slots, gpus)
        except BadInput as error:
            return {"error": str(error)}
        self._remember(self._released.union(names) if on else self._released.difference(names))
        for name in names:
            LOG.warning("event=released slot=%s on=%s", name, bool(on))
            self._post(name, events.Released(on=bool(on)))
        return {"slots": names}


def _read(file: Path) -> frozenset[str]:
    """What the agent before had released; a file that makes no sense counts as none."""
    try:
        return frozenset(map(str, json.loads(file.read_text())))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, TypeError) as error:
        LOG.warning("event=released-unknown file=%s error=%s", file, error)
        return frozenset()


def _texts(given: object) -> bool:
    return given is None or (isinstance(given, list) and all(isinstance(one, str) for one in given))


def chosen(known: Mapping[str, Slot], slots: Sequence[str] | None, gpus: Sequence[str] | None) -> list[str]:
    """The slots that are named, or that use one of the GPUs; all of the node when neither is given. Raises BadInput."""
    if slots is None and gpus is None:
        return sorted(known)
    for name in slots or ():
        if name not in known:
            raise BadInput(f"no slot {name} on this node; here are {', '.join(sorted(known)) or 'none'}")
    found = set(slots or ())
    for gpu in gpus or ():
        using = {name for name, slot in known.items() if _plain(gpu) in map(_plain, slot.gpus)}
        if not using:
            here = sorted({one for slot in known.values() for one in slot.gpus})
            raise BadInput(
                f"no slot of this node is known to use GPU {gpu}; known are {', '.join(here) or 'none'} "
                "(engines name their GPUs when they connect: if none has, write --slot)"
            )
        found |= using
    return sorted(found)


def _plain(gpu: str) -> str:
    """A UUID without the prefix that says what it is of: GPU-, MIG-."""
    return gpu.lower().removeprefix("gpu-").removeprefix("mig-")


def tell(run_dir: Path, slots: Sequence[str] | None, *, on: bool, gpus: Sequence[str] | None = None) -> list[str]:
    """Ask the agent; the slots concerned. Raises AgentUnreachable, BadInput."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(str(run_dir / SOCKET))
            sock.sendall(json.dumps({"slots": slots, "gpus": gpus, "on": on}).encode() + b"\n")
            with sock.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise AgentUnreachable(f"no agent answers at {run_dir / SOCKET} ({error})") from error
    if "error" in answer:
        raise BadInput(answer["error"])
    return list(answer["slots"])


def left(known: Mapping[str, Any], slots: Sequence[str]) -> list[str]:
    """What still holds memory in these slots, in words; nothing when all of it is free."""
    out = []
    for name in slots:
        status = known["slots"].get(name)
        if status is None:
            continue
        out += [f"{name}: weight set {one['set'][:12]} is {one['state']}" for one in status["weightSets"]]
        out += [
            f"{name}: engine {one['pod']} is {one['phase']}"
            for one in status["engines"]
            if one["phase"] not in ("gated", "exited", "")
        ]
    return out


def wait(
    look: Callable[[], Mapping[str, Any]], slots: Sequence[str], timeout: float, say: Callable[[str], None]
) -> bool:
    """Until nothing of these slots holds memory; whether that came true within `timeout` seconds."""
    end, told = time.monotonic() + timeout, ""
    while rest := left(look(), slots):
        if rest[0] != told:
            told = rest[0]
            say(told)
        if time.monotonic() > end:
            return False
        time.sleep(PAUSE)
    return True
