"""The reference engine as a runtime: the real architecture in plain torch on the CPU, greedy, one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_api import tensors
from ling_api.errors import BadInput, FillFailed
from ling_api.manifest import plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_engine.reference import app, config, matching, tokenizer, weights
from ling_engine.reference.generations import Generations
from ling_engine.reference.identity import identity_of
from ling_engine.reference.model import Ling
from ling_engine.reference.openai_request import Offer
from ling_engine.reference.plan import plan_of
from ling_engine.reference.sequence import Sequence
from ling_engine.reference.tensorfile import shards
from ling_engine.runtime import Description, ModelSettings, Runtime, ServedModel, SetDescription, WeightTwin

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as List

    from starlette.types import ASGIApp

    from ling_api.manifest import Layout, TensorSpec
    from ling_api.memory.base import Mapping
    from ling_engine.reference.config import Config

_SMALL = 64 << 20  # bytes of weights below which a second thread costs more than it brings
_WARM_UP = b"warm up"


class Target(WeightTwin):
    """The target's parameters: on `meta` until they are bound."""

    role, rank = "target", 0

    def __init__(self, settings: ModelSettings, layers: int, model: Ling) -> None:
        self._settings, self._layers, self._model = settings, layers, model

    def specs(self) -> List[TensorSpec]:
        return tensors.specs_of(self._model)

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        tensors.bind(self._model, mapping, layout)

    def load(self, progress: Callable[[float], None]) -> str:
        found = weights.load(self._settings.path, self._model, self._layers, progress)
        wanted = self._settings.revision
        if wanted not in ("", f"sha256:{found}"):
            raise FillFailed(f"{self._settings.path}: its content is sha256:{found}; model.revision says {wanted}")
        return found


class ReferenceModel(ServedModel):
    """The model in a server process."""

    def __init__(self, settings: ModelSettings, c: Config) -> None:
        self._model = Ling(c)
        size = sum(parameter.nbytes for parameter in self._model.parameters())
        if size < _SMALL:
            torch.set_num_threads(1)
        self.twins: List[WeightTwin] = (Target(settings, c.num_hidden_layers, self._model),)
        self._generations = Generations(self._model, Sequence.allocate(c, settings.context_length), settings.max_queue)
        self._offer = Offer(
            model=settings.served_name,
            context=settings.context_length,
            vocabulary=c.vocab_size,
            tokenizer=tokenizer.read(settings.path, c.vocab_size),
        )

    def warm_up(self) -> None:
        self._generations.now(list(_WARM_UP), 2)

    def app(self) -> ASGIApp:
        return app.build(self._generations, self._offer)


class Reference(Runtime):
    """Chosen with `--runtime reference`."""

    name = "reference"

    def preload(self) -> None:
        """Importing this module has imported everything."""

    def describe(self, settings: ModelSettings) -> Description:
        c = _config(settings)
        found = shards(settings.path)
        model = Ling(c)
        matching.match(found, dict(model.named_parameters()), c.num_hidden_layers)
        tokenizer.read(settings.path, c.vocab_size)
        layout = plan_layout(tensors.specs_of(model), granularity=MemfdMemory.granularity)
        keys = config.load_keys(settings.path)
        target = SetDescription(
            role="target",
            rank=0,
            identity=identity_of(settings.path, keys, c, found, settings.revision),
            nbytes=layout.nbytes,
        )
        return Description(sets=(target,), plan=plan_of(c, settings.context_length))

    def open(self, settings: ModelSettings) -> ServedModel:
        return ReferenceModel(settings, _config(settings))


def _config(settings: ModelSettings) -> Config:
    c = config.read(settings.path)
    if not len(_WARM_UP) + 2 <= settings.context_length <= c.max_position_embeddings:
        most, least = c.max_position_embeddings, len(_WARM_UP) + 2
        raise BadInput(f"context length {settings.context_length}: this model takes {least} to {most} tokens")
    return c


RUNTIME = Reference()
