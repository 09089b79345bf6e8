"""From settings to the modules of an engine: the target, the draft that the decoding asks for, their weight sets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import BadInput
from ling_engine import decoding
from ling_engine.reference import config, dspark_config, matching, plan
from ling_engine.reference.dspark import Dspark
from ling_engine.reference.dspark_model import DsparkModel
from ling_engine.reference.model import Ling
from ling_engine.reference.mtp import Mtp, Nextn
from ling_engine.reference.weightset import WeightSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_engine.reference.config import Config
    from ling_engine.reference.speculate import Draft
    from ling_engine.runtime import ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Modules without storage. `make_draft` allocates the draft's caches."""

    config: Config
    target: Ling
    sets: tuple[WeightSet, ...]
    window: int  # tokens that the draft proposes; 0 = no draft
    memory: dict[str, int]  # bytes that the draft needs beside its weights, by purpose
    make_draft: Callable[[], Draft | None]


def parts_of(settings: ModelSettings) -> Parts:
    """Raises BadInput with one sentence when config.json or the decoding make no sense."""
    c = config.read(settings.path)
    if settings.decoding.algorithm == decoding.NEXTN:
        return _nextn(settings, c)
    if settings.decoding.algorithm == decoding.DSPARK:
        return _dspark(settings, c)
    target = Ling(c)
    sets = (_target_set(settings, c, target),)
    return Parts(config=c, target=target, sets=sets, window=0, memory={}, make_draft=lambda: None)


def _nextn(settings: ModelSettings, c: Config) -> Parts:
    layers = config.load_keys(settings.path).get("num_nextn_predict_layers")
    if layers != 1:
        found = f"{settings.path / 'config.json'}: num_nextn_predict_layers is {layers or 0}"
        raise BadInput(f"{found}; NEXTN needs a checkpoint with one such layer")
    target, layer, steps = Ling(c), Mtp(c), settings.decoding.num_steps
    naming = matching.nextn(c.num_hidden_layers)
    own = WeightSet(role="nextn", folder=settings.path, module=layer, naming=naming, revision=settings.revision)
    return Parts(
        config=c,
        target=target,
        sets=(_target_set(settings, c, target), own),
        window=steps,
        memory=plan.nextn(c, settings.context_length + steps),
        make_draft=partial(Nextn, target, layer, c, steps, settings.context_length),
    )


def _dspark(settings: ModelSettings, c: Config) -> Parts:
    folder = Path(settings.decoding.draft) if settings.decoding.draft else settings.path / "dspark"
    d = dspark_config.read(folder, c)
    target, model = Ling(c, d.target_layer_ids), DsparkModel(d)
    window = settings.decoding.proposed or d.block_size
    own = WeightSet(role="dspark", folder=folder, module=model, naming=matching.dspark, revision="")
    return Parts(
        config=c,
        target=target,
        sets=(_target_set(settings, c, target), own),
        window=window,
        memory=plan.dspark(d, settings.context_length + window, window),
        make_draft=partial(Dspark, target, model, d, window, settings.context_length),
    )


def _target_set(settings: ModelSettings, c: Config, target: Ling) -> WeightSet:
    naming = matching.target(c.num_hidden_layers)
    return WeightSet(role="target", folder=settings.path, module=target, naming=naming, revision=settings.revision)
