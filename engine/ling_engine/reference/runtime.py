"""The reference engine as a runtime: the real architecture in plain torch on the CPU, greedy, one request at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from ling_api import tensors
from ling_api.errors import BadInput
from ling_api.manifest import plan_layout
from ling_api.memory.memfd import MemfdMemory
from ling_engine.reference import app, config, matching, tokenizer
from ling_engine.reference.generations import Generations
from ling_engine.reference.identity import identity_of
from ling_engine.reference.model import Ling
from ling_engine.reference.openai_request import Offer
from ling_engine.reference.plan import plan_of
from ling_engine.reference.sequence import Sequence
from ling_engine.reference.target import Target
from ling_engine.reference.tensorfile import shards
from ling_engine.runtime import Description, ModelSettings, Runtime, ServedModel, SetDescription, WeightTwin

if TYPE_CHECKING:
    from collections.abc import Sequence as List

    from starlette.types import ASGIApp

    from ling_engine.reference.config import Config

_SMALL = 64 << 20  # bytes of weights below which a second thread costs more than it brings
_THREADS = 4  # more than that, and on a shared machine they wait for each other
_WARM_UP = b"warm up"


class ReferenceModel(ServedModel):
    """The model in a server process."""

    def __init__(self, settings: ModelSettings, c: Config) -> None:
        self._model = Ling(c)
        size = sum(parameter.nbytes for parameter in self._model.parameters())
        torch.set_num_threads(1 if size < _SMALL else min(_THREADS, len(os.sched_getaffinity(0))))
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
