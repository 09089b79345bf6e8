"""One weight set of the reference engine as the engine room sees it: description, specs, bind, load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ling_api import tensors
from ling_api.errors import FillFailed
from ling_api.manifest import plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_engine.reference import identity, weights
from ling_engine.reference.config import load_keys
from ling_engine.reference.matching import match
from ling_engine.reference.tensorfile import shards
from ling_engine.runtime import SetDescription, WeightTwin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

    from ling_api.identity import Value
    from ling_api.manifest import Layout, TensorSpec
    from ling_api.memory.base import Mapping
    from ling_engine.reference.config import Config
    from ling_engine.reference.matching import Naming


@dataclass(slots=True, kw_only=True)
class WeightSet(WeightTwin):
    """A module's parameters, on `meta` until they are bound, and the files that fill them."""

    role: str
    folder: Path
    module: nn.Module
    naming: Naming
    revision: str  # "sha256:<64 hex>" that the folder's bytes must have, or ""
    rank: int = 0
    _specs: Sequence[TensorSpec] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._specs = tensors.specs_of(self.module)  # now, while nobody waits: binding changes none of them

    def describe(self, target: Config) -> SetDescription:
        """Reads headers only. Raises BadInput when files and module do not fit."""
        found = shards(self.folder)
        match(found, dict(self.module.named_parameters()), self.naming)
        known = identity.identity_of(self.role, self.folder, load_keys(self.folder), target, found, self.revision)
        nbytes = plan_layout(self.specs(), granularity=MemfdMemory.granularity).nbytes
        return SetDescription(role=self.role, rank=self.rank, identity=known, nbytes=nbytes)

    def facts(self) -> dict[str, Value]:
        return identity.facts(self.folder, load_keys(self.folder), shards(self.folder))

    def specs(self) -> Sequence[TensorSpec]:
        return self._specs

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        tensors.bind(self.module, mapping, layout)

    def load(self, progress: Callable[[float], None]) -> str:
        # NEXTN's layer is a small part of the target's files: they are read to the end only if a revision is at stake.
        whole = self.role != "nextn" or bool(self.revision)
        found = weights.load(self.folder, self.module, self.naming, progress, whole=whole)
        if self.revision not in ("", f"sha256:{found}"):
            raise FillFailed(f"{self.folder}: its content is sha256:{found}; model.revision says {self.revision}")
        return found
