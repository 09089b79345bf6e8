"""The body of a runtime that lives in the server's own process: its twins are bound here, it computes in one thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from ling_api.memory.memfd import MemfdMemory

from . import attach, paths
from .body import Body
from .cohort import Attached, Cohort
from .runtime import DraftingModel

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .body import Room
    from .paths import Paths
    from .runtime import Runtime, ServedModel


class InProcess(Body):
    """`runtime.open` and everything after it."""

    def __init__(self, runtime: Runtime, room: Room) -> None:
        self._runtime = runtime
        self._room = room
        self._model: ServedModel | None = None
        self._attached: dict[str, Attached] = {}
        self._ending = threading.Event()  # asyncio.run() waits for the threads of the background check

    async def attach(self) -> None:
        room, runtime, settings = self._room, self._runtime, self._room.settings.model_settings()
        self._model = model = await room.thread.run(runtime.open, settings)
        room.tell("opened")
        found = await room.thread.run(runtime.describe, settings)
        identities = {(one.role, one.rank): one.identity for one in found.sets}
        twins = {}
        for twin in model.twins:
            identity = identities[twin.role, twin.rank]
            twins[attach.named(twin, identity)] = (twin, identity)
        cohort = Cohort(
            link=room.link,
            memory=MemfdMemory(),
            thread=room.thread,
            ask=room.ask,
            tell=room.tell,
            progress=room.progress,
            revision=settings.revision,
        )
        self._attached = await attach.attach(cohort, twins)
        for one in self._attached.values():
            room.start(asyncio.to_thread(attach.check_rest, one, self._ending, room.turns))

    async def warm_up(self) -> None:
        served = self._served
        await self._room.thread.run(served.warm_up)
        self._room.metrics.draft_tokens = served.draft_tokens if isinstance(served, DraftingModel) else 0

    async def prove(self) -> None:
        await self._room.thread.run(self._served.prove)

    def promoted(self) -> None:
        """Nothing here sleeps."""

    def app(self) -> ASGIApp:
        return self._served.app()

    @property
    def paths(self) -> Paths:
        return paths.OPENAI

    def say_mapped(self) -> None:
        attach.say_mapped(self._room.link, self._attached)

    @property
    def limit(self) -> int:
        return 0

    def metrics(self) -> str:
        return ""

    def close(self) -> None:
        self._ending.set()

    @property
    def _served(self) -> ServedModel:
        assert self._model is not None, "attach comes first"  # noqa: S101
        return self._model
