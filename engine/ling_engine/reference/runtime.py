"""The reference engine as a runtime: the real architecture in plain torch on the CPU, one request at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from ling_api.errors import BadInput, DeviceError
from ling_engine.reference import app, tokenizer
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.generate import Decoder
from ling_engine.reference.generations import Generations
from ling_engine.reference.openai_request import Offer
from ling_engine.reference.parts import Parts, parts_of
from ling_engine.reference.plan import plan_of
from ling_engine.reference.sequence import Sequence
from ling_engine.runtime import REQUIRED, Description, ModelSettings, Runtime, ServedModel, WeightTwin

if TYPE_CHECKING:
    from collections.abc import Sequence as List

    from starlette.types import ASGIApp

_SMALL = 64 << 20  # bytes of weights below which a second thread costs more than it brings
_THREADS = 4  # more than that, and on a shared machine they wait for each other
_WARM_UP = b"warm up"


class ReferenceModel(ServedModel):
    """The model in a server process."""

    def __init__(self, settings: ModelSettings, parts: Parts) -> None:
        c = parts.config
        size = sum(parameter.nbytes for one in parts.sets for parameter in one.module.parameters())
        torch.set_num_threads(1 if size < _SMALL else min(_THREADS, len(os.sched_getaffinity(0))))
        self.twins: List[WeightTwin] = parts.sets
        self.draft_tokens = parts.window + 1 if parts.window else 0
        # A round writes its whole window behind the last token, also where less is still wanted.
        sequence = Sequence.allocate(c, settings.context_length + parts.window)
        self._generations = Generations(Decoder(parts.target, sequence, parts.make_draft()), settings.max_queue)
        self._offer = Offer(
            model=settings.served_name,
            context=settings.context_length,
            vocabulary=c.vocab_size,
            tokenizer=tokenizer.read(settings.path, c.vocab_size),
        )

    def warm_up(self) -> None:
        self._known = self._generations.now(list(_WARM_UP), Bounds(limit=2))

    def prove(self) -> None:
        (found,) = self._generations.now(list(_WARM_UP), Bounds(limit=1))
        if found != self._known[0]:
            raise DeviceError(f"a parked server generates the token {found} where {self._known[0]} is known")

    def app(self) -> ASGIApp:
        return app.build(self._generations, self._offer)


class Reference(Runtime):
    """Chosen with `--runtime reference`."""

    name = "reference"
    native_threads = False

    def preload(self, settings: ModelSettings) -> None:
        """Importing this module has imported everything."""

    def describe(self, settings: ModelSettings) -> Description:
        parts = _parts(settings)
        tokenizer.read(settings.path, parts.config.vocab_size)
        memory = plan_of(parts.config, settings.context_length, parts.window, parts.memory)
        return Description(sets=tuple(one.describe(parts.config) for one in parts.sets), plan=memory)

    def open(self, settings: ModelSettings) -> ServedModel:
        return ReferenceModel(settings, _parts(settings))


def _parts(settings: ModelSettings) -> Parts:
    if (
        settings.tp != 1
        or settings.dtype != "auto"
        or any((settings.router_dtype, settings.extra_args, settings.for_gpu))
    ):
        raise BadInput(
            "--tp, --dtype, --router-dtype, --extra-arg, --for-gpu: only for --runtime sglang; leave them out"
        )
    if settings.weight_cache != REQUIRED:
        raise BadInput(f"--weight-cache {settings.weight_cache}: --runtime reference knows {REQUIRED} only")
    parts = parts_of(settings)
    most, least = parts.config.max_position_embeddings, len(_WARM_UP) + 2
    if not least <= settings.context_length <= most:
        raise BadInput(f"context length {settings.context_length}: this model takes {least} to {most} tokens")
    return parts


RUNTIME = Reference()
