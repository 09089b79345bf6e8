"""Filling one weight set: create regions, deposit them, write only when the keeper holds them, settle, seal.

The deposit comes before the first byte, because whoever touches a page first pays for it: the slot pod. A new agent is
told of the fill at once (the same regions are deposited again), so that nobody else starts to fill the same set.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from ling_api import checks, fdpass, sameregion
from ling_api.errors import FillFailed
from ling_api.manifest import Layout, Manifest, plan_layout

from . import sealed, unchanged
from .cohort import Attached, Cohort
from .rank import Declined, LinkLost
from .runtime import SettlingTwin

if TYPE_CHECKING:
    from ling_api.identity import Identity
    from ling_api.manifest import RegionEntry
    from ling_api.memory.base import Mapping

    from .runtime import WeightTwin

_log = logging.getLogger(__name__)
_REGIONS_A_FRAME = 120


class _SealedAlready(Exception):
    """The agent that was asked again holds our own regions sealed: its predecessor died before it answered."""


class Fill:
    """One set, once."""

    def __init__(self, cohort: Cohort, name: str, twin: WeightTwin, identity: Identity) -> None:
        self._cohort = cohort
        self._name = name
        self._twin = twin
        self._identity = identity
        self._fds: list[int] = []
        self._parts: list[tuple[int, ...]] = []  # sizes of the regions of each deposit, in their order
        self._known_to = 0  # the number of the agent that has our deposit
        self._ticket = ""  # the last that an agent took; it takes it again on the same connection

    async def run(self, ticket: str) -> Attached:
        """Raises FillFailed, DeviceError, AttachCheckFailed; the agent then drops what was written."""
        memory = self._cohort.memory
        run = self._cohort.thread.run
        specs = await run(self._twin.specs)
        layout = plan_layout(specs, granularity=memory.granularity, max_region=memory.max_region)
        self._cohort.tell("filling")
        try:
            await self._create(layout.sizes)
            await self._deposit_first(ticket)
            self._cohort.tell("stored")
            mapping = await run(memory.map, self._fds, layout.sizes, writable=True)
            await run(self._twin.bind, mapping, layout)
            content = await self._load()
            sealed.check_revision(self._cohort.revision_of(self._twin.role), content)
            await run(unchanged.insist, self._twin, self._identity)
            layout, form = await self._settle(mapping, layout)
            await run(mapping.make_read_only, self._fds)
            self._cohort.tell("loaded")
            regions = await run(checks.checksum_regions, mapping, layout.sizes)
            manifest = self._manifest(layout, regions, content, form)
            await self._seal(manifest)
            self._cohort.tell("sealed")
        finally:
            fdpass.close_all(self._fds)
        _log.info("set=%s role=%s filled=%d", self._name, self._twin.role, manifest.nbytes)
        return Attached(manifest=manifest, mapping=mapping, filled=True)

    async def _create(self, sizes: tuple[int, ...]) -> None:
        """Regions that are deposited together, one frame for as many as a frame takes."""
        for size in sizes:
            self._fds.append(await self._cohort.thread.run(self._cohort.memory.create, size))
        starts = range(0, len(sizes), _REGIONS_A_FRAME)
        self._parts.extend(sizes[at : at + _REGIONS_A_FRAME] for at in starts)

    async def _settle(self, mapping: Mapping, layout: Layout) -> tuple[Layout, str]:
        """The set as loading left it, in its tail what found no place; the form of the model."""
        if not isinstance(self._twin, SettlingTwin):
            return layout, ""
        run = self._cohort.thread.run
        start, sizes = mapping.size, layout.sizes
        need = await run(self._twin.tail, mapping, layout)
        if need:
            size = -(-need // self._cohort.memory.granularity) * self._cohort.memory.granularity
            await self._create((size,))
            await self._deposit_tail()
            await run(mapping.extend, self._fds[-1], size)
            sizes = (*sizes, size)
        tensors, form = await run(self._twin.settle, mapping, start)
        return Layout(tensors, sizes), form

    def _manifest(self, layout: Layout, regions: tuple[RegionEntry, ...], content: str, form: str) -> Manifest:
        return Manifest(
            identity=self._identity,
            rank=self._twin.rank,
            kind=self._cohort.memory.kind,
            tensors=layout.tensors,
            regions=regions,
            content=content,
            form=form,
        )

    async def _load(self) -> str:
        """The runtime's loader, while the agent, whichever it is, knows of the fill."""
        loading = asyncio.ensure_future(self._cohort.thread.run(self._twin.load, self._cohort.progress))
        known = asyncio.ensure_future(self._stay_known())
        try:
            await asyncio.wait({loading, known}, return_when=asyncio.FIRST_COMPLETED)
            if known.done():
                known.result()
            return str(await loading).removeprefix("sha256:")
        finally:
            known.cancel()

    async def _stay_known(self) -> None:
        while True:
            await self._cohort.link.welcomed(after=self._known_to)
            await self._deposit_again()

    async def _deposit_first(self, ticket: str) -> None:
        try:
            await self._deposit(ticket)
        except LinkLost:
            await self._deposit_again()

    async def _deposit_tail(self) -> None:
        """Behind what is deposited already, before the first byte of it is written."""
        if self._known_to != self._cohort.link.welcomes:
            await self._deposit_again()
            return
        try:
            await self._deposit(self._ticket)
        except LinkLost:
            await self._deposit_again()

    async def _deposit_again(self) -> None:
        """To the agent that is there now. Raises _SealedAlready, FillFailed."""
        while True:
            await self._cohort.link.welcomed(after=self._known_to)
            answer = await self._cohort.ask([self._name])
            try:
                if self._name in answer.tickets:
                    await self._deposit(answer.tickets[self._name])
                    return
                if await self._is_ours(answer.granted[self._name]):
                    raise _SealedAlready
            except LinkLost:
                continue
            raise FillFailed("another engine filled the same set meanwhile; this one starts again and attaches it")

    async def _deposit(self, ticket: str) -> None:
        """Returns when the keeper holds every region. Raises LinkLost, FillFailed."""
        number = self._cohort.link.welcomes
        try:
            await self._cohort.link.request(*self._frames(ticket))
        except Declined as error:
            raise FillFailed(f"the slot does not take the regions of {self._name}: {error}") from error
        self._known_to, self._ticket = number, ticket

    def _frames(self, ticket: str) -> list[tuple[dict[str, Any], list[int]]]:
        head = {"op": "deposit", "ticket": ticket, "set": self._name, "kind": self._cohort.memory.kind}
        frames: list[tuple[dict[str, Any], list[int]]] = []
        first = 0
        for part, sizes in enumerate(self._parts):
            fields = {**head, "sizes": list(sizes), "part": part, "parts": len(self._parts)}
            frames.append((fields, self._fds[first : first + len(sizes)]))
            first += len(sizes)
        return frames

    async def _seal(self, manifest: Manifest) -> None:
        fd = sealed.make_manifest(manifest)
        try:
            while True:
                try:
                    if self._known_to != await self._cohort.link.welcomed():
                        await self._deposit_again()
                    await self._cohort.link.request(({"op": "seal", "set": self._name}, [fd]))
                    return
                except LinkLost:
                    continue
                except _SealedAlready:
                    return
                except Declined as error:
                    raise FillFailed(f"the set {self._name} cannot be sealed: {error}") from error
        finally:
            os.close(fd)

    async def _is_ours(self, ticket: str) -> bool:
        frames = await self._cohort.link.request(({"op": "fetch", "ticket": ticket}, ()))
        try:
            return sameregion.all_same(sealed.handed_over(frames).regions, self._fds)
        finally:
            for _, fds in frames:
                fdpass.close_all(fds)
