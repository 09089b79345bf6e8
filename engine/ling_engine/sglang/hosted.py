"""The body of a server that runs SGLang: its ranks attach the weights, its tokenizer manager and application live here.

Two threads: the event loop (desk, HTTP, tokenizer manager) and the model thread, which forks SGLang's processes, waits
for them and lives on, since they are told to die with the thread that made them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from itertools import pairwise
from typing import TYPE_CHECKING

from ling_api.errors import DeviceError
from ling_engine.body import Body
from ling_engine.pulse import Pulses
from ling_engine.runtime import OFF, PREFERRED

from . import arguments, children, describe, device, figures, launch, preload, seat, wakefulness
from .desk import Desk, RankDied
from .routes import PATHS
from .seat import Seat

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ling_engine.body import Room
    from ling_engine.paths import Paths
    from ling_engine.runtime import Runtime

_log = logging.getLogger(__name__)
_SHORT, _NEW = (10, 11, 12), 8  # what SGLang's own warm-up asks for
_COMPILING_S = 60.0  # a first prompt of a new size took 28 s on a fresh cache of kernels
_INTERPRETED_S = 600.0
_AGENT_PATIENCE_S = 10.0  # with --weight-cache Preferred
_DESK_FIRST_S = 0.01  # for the reason that a rank gave itself
_LONG = 1024  # tokens of a prompt that reaches the kernels of long ones, where the context allows it


class Hosted(Body):
    """SGLang and its processes."""

    def __init__(self, room: Room, runtime: Runtime, here: describe.Device) -> None:
        self._room = room
        self._runtime = runtime
        self._here = here
        self._settings = room.settings.model_settings()
        self._desk = Desk(self._settings.tp)
        self._loop = asyncio.get_running_loop()
        self._forked = asyncio.Event()
        self._launching: asyncio.Future[launch.Launched] | None = None
        self._launched: launch.Launched | None = None
        self._watch: children.Watch | None = None
        self._pulses = Pulses(self._settings.tp)
        self._role = wakefulness.shared()
        self._died = False  # a process of SGLang's did, or failed
        self._roles: tuple[str, ...] = ()
        self._cached = self._settings.weight_cache != OFF
        self._figures = figures.Figures(room.settings.run_dir)
        self._known = -1  # the first token of the warm-up
        self._loop.add_signal_handler(signal.SIGQUIT, self._quit)

    async def attach(self) -> None:
        room = self._room
        if self._settings.weight_cache == PREFERRED:
            self._cached = await self._slot_or_free_memory()
        argv = await room.thread.run(self._prepare)
        room.tell("opened")
        forks = launch.Forks(
            keep=self._desk.filenos(), pulses=self._pulses, ranks=self._ranks_forked, everyone=self._all_forked
        )
        self._launching = asyncio.ensure_future(room.thread.run(launch.launch, argv, forks))
        forked = asyncio.ensure_future(self._forked.wait())
        await asyncio.wait([self._launching, forked], return_when=asyncio.FIRST_COMPLETED)
        forked.cancel()
        if not self._cached:
            await self._launching
            return
        room.start(self._serve_desk())
        attached = asyncio.ensure_future(self._desk.complete(self._roles))
        await asyncio.wait([self._launching, attached], return_when=asyncio.FIRST_COMPLETED)
        if not attached.done():
            attached.cancel()
            await self._launching  # raises what made it end
            self._desk.require(self._roles)

    async def _serve_desk(self) -> None:
        try:
            await self._desk.serve(self._room.ask, self._tell, self._room.progress)
        except RankDied:
            self._died = True
            raise

    def _prepare(self) -> list[str]:
        """In the model thread: what to call SGLang with, and what its ranks will inherit."""
        if figures.FLAG in self._settings.extra_args:
            self._figures.begin()
        random.seed()  # the zygote's state is every server's; SGLang picks ports with it
        wanted, called = describe.command(self._settings, self._here, os.environ)
        self._roles = arguments.roles(wanted.algorithm)
        self._room.metrics.draft_tokens = called.draft_tokens
        argv = [one for one in called.argv if one != "--skip-server-warmup"]
        if not preload.has_tokenizer(self._settings.path):
            _log.warning("tokenizer=none model=%s only prompts of ids are understood", self._settings.path)
            argv.append("--skip-tokenizer-init")
        if not self._cached:
            return _without(argv, "--load-format", arguments.LOAD_FORMAT)
        found = self._runtime.describe(self._settings)
        seat.prepare(
            Seat(
                run_dir=self._room.settings.run_dir,
                server=self._room.server_id,
                identities={(one.role, one.rank): one.identity for one in found.sets},
                revision=self._settings.revision,
                memory="memfd" if self._here.capability is None else "cuda",
                desk=self._desk,
            )
        )
        return argv

    async def _slot_or_free_memory(self) -> bool:
        """Preferred: whether the slot's weights are used. Not so if no agent answers and the GPUs have room for all."""
        said = False
        while True:
            try:
                async with asyncio.timeout(_AGENT_PATIENCE_S):
                    await self._room.link.welcomed()
                    return True
            except TimeoutError:
                free, wanted = await self._room.thread.run(self._free_and_wanted)
            if free >= wanted:
                _log.warning("weights=from-disk reason=agent-unreachable free=%d wanted=%d", free, wanted)
                return False
            if not said:
                said = True
                self._room.tell("waiting")
            _log.warning("weights=waiting reason=agent-unreachable free=%d wanted=%d", free, wanted)

    def _free_and_wanted(self) -> tuple[int, int]:
        """Bytes of one rank: free where least is, and wanted."""
        _, called = describe.command(self._settings, self._here, os.environ)
        wanted = sum(called.weights.values()) + sum(called.plan.private.values())
        return device.free(self._settings.tp), wanted

    def _ranks_forked(self) -> None:
        if device.initialized():
            raise DeviceError("this server called the GPU's driver before it forked its ranks: they could not use it")
        self._loop.call_soon_threadsafe(self._forked.set)

    def _all_forked(self, pids: dict[str, int]) -> None:
        self._watch = children.Watch(pids, self._child_died, self._pulses)
        _log.info("sglang=forked %s", " ".join(f"{name.replace(' ', '-')}={pid}" for name, pid in pids.items()))

    def _child_died(self, name: str) -> None:
        """In the watching thread."""
        self._loop.call_soon_threadsafe(lambda: self._room.start(self._lost(f"{name} died")))

    def _quit(self) -> None:
        """SIGQUIT: how SGLang's processes say that they failed. A rank with a seat has said more at the desk."""
        self._room.start(self._lost("a process of SGLang failed; its log says why"))

    async def _lost(self, how: str) -> None:
        await asyncio.sleep(_DESK_FIRST_S)
        self._died = True
        raise RankDied(how)

    def _tell(self, role: str, step: str) -> None:
        self._room.tell(step if step == "filling" else f"{role}-{step}")

    async def warm_up(self) -> None:
        assert self._launching is not None, "attach comes first"  # noqa: S101
        self._launched = launched = await self._launching
        if self._cached:
            self._desk.require(self._roles)
        self._room.tell("ready")
        self._room.metrics.first_patience = _COMPILING_S
        if self._here.capability is None:
            self._room.metrics.least_patience = _INTERPRETED_S
        _log.info("sglang=ready startup=%s", launched.info.get("startup_time"))
        await self._generate(launched)
        await launch.up(launched)

    async def _generate(self, launched: launch.Launched) -> None:
        if self._here.capability is None:  # a Triton interpreter: seconds a token, and nothing to compile
            self._known = (await launch.generate(launched, _SHORT, 1))[0]
            return
        self._known = (await launch.generate(launched, _SHORT, _NEW))[0]
        long = min(_LONG, self._settings.context_length - _NEW)
        if long > len(_SHORT):
            await launch.generate(launched, [10 + at % 90 for at in range(long)], _NEW)

    async def prove(self) -> None:
        assert self._launched is not None, "warm_up comes first"  # noqa: S101
        found = (await launch.generate(self._launched, _SHORT, 1))[0]
        if found != self._known:
            raise DeviceError(f"a parked server generates the token {found} where {self._known} is known")

    def promoted(self) -> None:
        self._role.promote()

    def app(self) -> ASGIApp:
        assert self._launched is not None, "warm_up comes first"  # noqa: S101
        return launch.application(self._launched)

    @property
    def paths(self) -> Paths:
        return PATHS

    @property
    def limit(self) -> int:
        return self._settings.concurrency + self._settings.max_queue

    def say_mapped(self) -> None:
        """The ranks say it themselves, each on its own link."""

    def metrics(self) -> str:
        return self._figures.text() if figures.FLAG in self._settings.extra_args else ""

    def close(self) -> None:
        """After a death nobody is waited for whose end the agent sees itself, as it does of ranks that have attached:
        it lets nobody in before their memory is free, and the server's own end is what all wait for."""
        if self._watch is not None:
            self._watch.close(waits=not (self._died and self._cached and self._desk.has_all(self._roles)))


def _without(argv: list[str], flag: str, value: str) -> list[str]:
    pairs = list(pairwise(argv))
    at = pairs.index((flag, value)) if (flag, value) in pairs else len(argv)
    return argv[:at] + argv[at + 2 :]
