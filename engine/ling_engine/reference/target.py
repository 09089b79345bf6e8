"""The target's weight set as the engine room sees it: specs, bind, load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api import tensors
from ling_api.errors import FillFailed
from ling_engine.reference import weights
from ling_engine.runtime import WeightTwin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ling_api.manifest import Layout, TensorSpec
    from ling_api.memory.base import Mapping
    from ling_engine.reference.model import Ling
    from ling_engine.runtime import ModelSettings


class Target(WeightTwin):
    """The target's parameters: on `meta` until they are bound."""

    role, rank = "target", 0

    def __init__(self, settings: ModelSettings, layers: int, model: Ling) -> None:
        self._settings, self._layers, self._model = settings, layers, model
        self._specs = tensors.specs_of(model)  # now, while nobody waits: binding changes none of them

    def specs(self) -> Sequence[TensorSpec]:
        return self._specs

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        tensors.bind(self._model, mapping, layout)

    def load(self, progress: Callable[[float], None]) -> str:
        found = weights.load(self._settings.path, self._model, self._layers, progress)
        wanted = self._settings.revision
        if wanted not in ("", f"sha256:{found}"):
            raise FillFailed(f"{self._settings.path}: its content is sha256:{found}; model.revision says {wanted}")
        return found
