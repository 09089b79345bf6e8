"""One weight set filled and attached in this process, over memfds: what two engines would do, without an agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ling_api import checks, fdpass
from ling_api.identity import Identity
from ling_api.manifest import Layout, Manifest, plan_layout
from ling_api.memory import memfd

if TYPE_CHECKING:
    from ling_api.memory.memfd import MemfdMapping
    from ling_engine.sglang.twin import ModelTwin

MEMORY = memfd.MemfdMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledSet:
    """A sealed set; `mapping` is the filler's, read-only by now."""

    manifest: Manifest
    mapping: MemfdMapping
    fds: tuple[int, ...]

    def map(self) -> MemfdMapping:
        """As an attacher does."""
        sizes = [region.size for region in self.manifest.regions]
        return MEMORY.map([memfd.reader(fd) for fd in self.fds], sizes, writable=False)

    def with_form(self, form: str) -> FilledSet:
        return replace(self, manifest=replace(self.manifest, form=form))

    def close(self) -> None:
        fdpass.close_all(self.fds)


def fill(twin: ModelTwin) -> FilledSet:
    """The filler's steps in their order."""
    layout = plan_layout(twin.specs(), granularity=MEMORY.granularity)
    fds = [MEMORY.create(size) for size in layout.sizes]
    mapping = MEMORY.map(fds, layout.sizes, writable=True)
    twin.bind(mapping, layout)
    content = twin.load(lambda _: None)
    start, tail = mapping.size, twin.tail(mapping, layout)
    sizes = list(layout.sizes)
    if tail:
        sizes.append(-(-tail // MEMORY.granularity) * MEMORY.granularity)
        fds.append(MEMORY.create(sizes[-1]))
        mapping.extend(fds[-1], sizes[-1])
    tensors, form = twin.settle(mapping, start)
    mapping.make_read_only(fds)
    for fd in fds:
        memfd.seal(fd)
    manifest = Manifest(
        identity=Identity.of(twin.role, {"model": "test"}),
        rank=twin.rank,
        kind="memfd",
        tensors=Layout(tensors, tuple(sizes)).tensors,
        regions=checks.checksum_regions(mapping, sizes),
        content=content,
        form=form,
    )
    return FilledSet(manifest=Manifest.from_bytes(manifest.to_bytes()), mapping=mapping, fds=tuple(fds))
