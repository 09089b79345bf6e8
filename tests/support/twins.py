"""One weight set filled and attached without an agent: what two engines would do, in one process or in two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ling_api import checks, fdpass
from ling_api.identity import Identity
from ling_api.manifest import Layout, Manifest, plan_layout
from ling_api.memory import memfd
from ling_api.memory.base import holder

if TYPE_CHECKING:
    from ling_api.memory.base import Mapping, RankMemory
    from ling_engine.sglang.twin import ModelTwin

MEMORY = memfd.MemfdMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledSet:
    """A sealed set; `mapping` is the filler's, read-only by now."""

    manifest: Manifest
    mapping: Mapping
    fds: tuple[int, ...]

    def map(self, memory: RankMemory = MEMORY) -> Mapping:
        """As an attacher does."""
        reader = holder(memory.kind).reader
        return memory.map([reader(fd) for fd in self.fds], self.sizes, writable=False)

    @property
    def sizes(self) -> list[int]:
        return [region.size for region in self.manifest.regions]

    def with_form(self, form: str) -> FilledSet:
        return replace(self, manifest=replace(self.manifest, form=form))

    def close(self) -> None:
        fdpass.close_all(self.fds)


def fill(twin: ModelTwin, memory: RankMemory = MEMORY) -> FilledSet:
    """The filler's steps in their order."""
    layout = plan_layout(twin.specs(), granularity=memory.granularity, max_region=memory.max_region)
    fds = [memory.create(size) for size in layout.sizes]
    mapping = memory.map(fds, layout.sizes, writable=True)
    twin.bind(mapping, layout)
    content = twin.load(lambda _: None)
    start, tail = mapping.size, twin.tail(mapping, layout)
    sizes = list(layout.sizes)
    if tail:
        sizes.append(-(-tail // memory.granularity) * memory.granularity)
        fds.append(memory.create(sizes[-1]))
        mapping.extend(fds[-1], sizes[-1])
    tensors, form = twin.settle(mapping, start)
    mapping.make_read_only(fds)
    for fd in fds:
        holder(memory.kind).seal(fd)
    manifest = Manifest(
        identity=Identity.of(twin.role, {"model": "test"}),
        rank=twin.rank,
        kind=memory.kind,
        tensors=Layout(tensors, tuple(sizes)).tensors,
        regions=checks.checksum_regions(mapping, sizes),
        content=content,
        form=form,
    )
    return FilledSet(manifest=Manifest.from_bytes(manifest.to_bytes()), mapping=mapping, fds=tuple(fds))
