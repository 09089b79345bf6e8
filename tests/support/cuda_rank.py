"""A rank on GPU memory, as the node agent sees one; no torch. `RankProcess(..., module=MODULE)` runs it in a child."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.rank_client import RankClient, TestSet, memfd_of, run_rank

from ling_api import checks, fdpass
from ling_api.manifest import Manifest
from ling_api.memory.cuda import CudaMemory

if TYPE_CHECKING:
    from ling_api.memory.base import Mapping

MODULE = "tests.support.cuda_rank"


class CudaRankClient(RankClient):
    """Makes, fills and attaches regions of the first GPU."""

    def _begin(self, sock: Any, server: str, rank: int) -> None:
        self.memory = CudaMemory()
        self.mappings: list[Mapping] = []
        super()._begin(sock, server, rank)

    def again(self, folder: str, server: str) -> None:
        """A new connection, to a new agent; what was begun goes on."""
        filling = self.filling
        self.sock.close()
        super()._begin(fdpass.connect(Path(folder) / "fd.sock", 10), server, 0)
        self.filling = filling

    def deposit(self, ticket: str, name: str, nbytes: int) -> None:
        if name not in self.filling:
            sizes = [nbytes // 2, nbytes // 2]
            fds = [self.memory.create(size) for size in sizes]
            self.filling[name] = (fds, sizes, self.memory.map(fds, sizes, writable=True))
        fds, sizes, _ = self.filling[name]
        shape = {"set": name, "kind": "cuda", "sizes": sizes, "part": 0, "parts": 1}
        self.ask("deposit", "stored", fds, ticket=ticket, **shape)

    def fill(self, what: str) -> None:
        """Writes the content of the TestSet of that name, gives up writing, seals with its checksums."""
        chosen = TestSet(name=what)
        fds, sizes, mapping = self.filling.pop(chosen.id)
        device = mapping._device
        with device.current():
            device.call("write", "cuMemcpyHtoD", mapping.address, chosen.content, chosen.nbytes)
        mapping.make_read_only(fds)
        fdpass.close_all(fds)
        regions = checks.checksum_regions(mapping, sizes)
        text = Manifest(identity=chosen.identity, rank=0, kind="cuda", tensors=(), regions=regions).to_bytes()
        manifest = memfd_of(text)
        self.ask("seal", "sealed", [manifest], set=chosen.id)
        fdpass.close_all([manifest])
        self.say({"op": "mapped", "set": chosen.id})
        self.mappings.append(mapping)

    def read(self, ticket: str) -> str:
        """Fetches a set, attaches it and tells its set id and first 64 bytes."""
        name, fds, sizes = self.fetch(ticket)
        mapping = self.memory.map(fds, sizes, writable=False)
        fdpass.close_all(fds)
        self.mappings.append(mapping)
        return f"{name} {bytes(mapping.buffer(0, 64)).decode()}"


if __name__ == "__main__":
    run_rank(*sys.argv[1:], client=CudaRankClient)
