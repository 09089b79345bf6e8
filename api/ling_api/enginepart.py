"""The engine part of a LingDeployment: what decides an engine, and the revision that names it. Pure.

Two kinds of default must not be confused: what a field is *now* when it is left out (the dataclasses' defaults), and
BASELINE, what it meant when it entered the schema. A revision leaves out every value that equals its baseline, so
neither a new field nor a changed default ever rolls an engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ling_api import checkpoint, engine, gpu
from ling_api.checkpoint import Decoding, Model
from ling_api.engine import Engine
from ling_api.fields import Object, number, section, text
from ling_api.gpu import Gpu
from ling_api.quantity import parse_exact

REQUIRED: Final = "Required"
POLICIES: Final = (REQUIRED, "Preferred", "Off")

# What each field of the engine part meant when it entered the schema. Never change a line; add one with each new field.
BASELINE: Final[Object] = {
    "model": checkpoint.MODEL_BASELINE,
    "decoding": checkpoint.DECODING_BASELINE,
    "parallelism": {"tp": 1},
    "engine": engine.BASELINE,
    "gpu": gpu.BASELINE,
    "weightCache": {"policy": REQUIRED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePart:
    """What decides an engine. It is what a ControllerRevision stores and a revision names."""

    model: Model
    engine: Engine = field(default_factory=Engine)
    gpu: Gpu = field(default_factory=Gpu)
    decoding: Decoding = field(default_factory=Decoding)
    tp: int = 1  # ranks, one GPU each
    cache_policy: str = REQUIRED

    @classmethod
    def from_dict(cls, data: Object) -> EnginePart:
        return cls(
            model=Model.from_dict(section(data, "model")),
            engine=Engine.from_dict(section(data, "engine")),
            gpu=Gpu.from_dict(section(data, "gpu")),
            decoding=Decoding.from_dict(section(data, "decoding")),
            tp=number(section(data, "parallelism"), "tp", 1, least=1),
            cache_policy=text(section(data, "weightCache"), "policy", REQUIRED, one_of=POLICIES),
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field, but what is empty."""
        parts: dict[str, dict[str, Any]] = {
            "model": self.model.to_dict(),
            "decoding": self.decoding.to_dict(),
            "parallelism": {"tp": self.tp},
            "engine": self.engine.to_dict(),
            "gpu": self.gpu.to_dict(),
            "weightCache": {"policy": self.cache_policy},
        }
        return {part: {k: v for k, v in values.items() if v not in ("", {}, [])} for part, values in parts.items()}


def _effective(value: Any, baseline: Any) -> Any:
    """The value without what equals its baseline; {} when nothing is left."""
    if not isinstance(value, Mapping):
        return value
    known = baseline if isinstance(baseline, Mapping) else {}
    kept = {k: _effective(v, known.get(k)) for k, v in value.items() if k not in known or v != known[k]}
    return {k: v for k, v in kept.items() if v != {}}


def revision_of(part: EnginePart) -> str:
    """8 hex digits that name the engine part as the user meant it.

    An image that the user left out is not in it: it is resolved once, and kept in the ControllerRevision of this name.
    Quantities count by what they mean: 1 and 1000m are the same.
    """
    data: dict[str, Any] = part.to_dict()
    resources = part.engine.resources.to_dict()
    exact = {side: {k: str(parse_exact(v)) for k, v in values.items()} for side, values in resources.items()}
    data["engine"] = {**data["engine"], "resources": exact}
    canonical = json.dumps(_effective(data, BASELINE), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
