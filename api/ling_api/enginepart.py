"""The engine part of a LingDeployment: what decides an engine, and the revision that names it. Pure.

Two kinds of default must not be confused: what a field is *now* when it is left out (the dataclasses' defaults), and
BASELINE, what it meant when it entered the schema. A revision leaves out every value that equals its baseline, so
neither a new field nor a changed default ever rolls an engine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ling_api.errors import BadInput
from ling_api.fields import Object, number, section, text
from ling_api.gpu import BASELINE as GPU_BASELINE
from ling_api.gpu import Gpu
from ling_api.quantity import parse_exact

_SOURCE: Final = re.compile(r"pvc://(?P<claim>[a-z0-9][-.a-z0-9]*)/(?P<inside>.*)|host:///(?P<path>[^/].*)")

# What each field of the engine part meant when it entered the schema. Never change a line; add one with each new field.
BASELINE: Final[Object] = {
    "model": {"revision": ""},
    "engine": {"runtime": "Reference", "image": "", "contextLength": 4096, "maxQueue": 4096},
    "gpu": GPU_BASELINE,
    "decoding": {"algorithm": "None"},
}

ALGORITHMS: Final = ("None", "NEXTN", "DSPARK")


class Folder:
    """A folder that holds a checkpoint: `source` is pvc://CLAIM/PATH or host:///PATH."""

    __slots__ = ()
    source: str

    def check(self, field: str) -> None:
        """BadInput, with the field's name, when the source is neither."""
        if _SOURCE.fullmatch(self.source) is None or ".." in self.source.split("/"):
            raise BadInput(f"{field}: {self.source!r}: write pvc://CLAIM/PATH or host:///PATH")

    @property
    def claim(self) -> str:
        """The PersistentVolumeClaim of pvc://, "" for host://."""
        found = _SOURCE.fullmatch(self.source)
        return (found and found["claim"]) or ""

    @property
    def path(self) -> str:
        """The path inside the claim or below the model folder, without slashes at its ends."""
        found = _SOURCE.fullmatch(self.source)
        return ((found and (found["inside"] or found["path"])) or "").strip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Folder):
    """The checkpoint; `revision` is sha256:HEX or ""."""

    source: str
    revision: str = ""

    def __post_init__(self) -> None:
        self.check("model.source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(Folder):
    """The checkpoint of an external draft."""

    source: str

    def __post_init__(self) -> None:
        self.check("decoding.draft.source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How tokens are found. 0 is the algorithm's own number; without `draft` DSPARK's lies in the model's folder."""

    algorithm: str = "None"
    num_steps: int = 0
    num_draft_tokens: int = 0
    draft: Draft | None = None

    @classmethod
    def from_dict(cls, data: Object) -> Decoding:
        draft = section(data, "draft")
        return cls(
            algorithm=text(data, "algorithm", "None", one_of=ALGORITHMS),
            num_steps=number(data, "numSteps", 0),
            num_draft_tokens=number(data, "numDraftTokens", 0),
            draft=Draft(source=text(draft, "source")) if draft else None,
        )

    def to_dict(self) -> dict[str, Any]:
        numbers = {"numSteps": self.num_steps, "numDraftTokens": self.num_draft_tokens}
        data: dict[str, Any] = {"algorithm": self.algorithm, **{key: n for key, n in numbers.items() if n}}
        return data | ({"draft": {"source": self.draft.source}} if self.draft else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits of the engine container, as sorted pairs of name and quantity as written."""

    requests: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_dict(cls, data: Object) -> Resources:
        def pairs(key: str) -> tuple[tuple[str, str], ...]:
            found = tuple(sorted((name, str(value)) for name, value in section(data, key).items()))
            for _, value in found:
                parse_exact(value)
            return found

        return cls(requests=pairs("requests"), limits=pairs("limits"))

    def to_dict(self) -> dict[str, Any]:
        sides = {"requests": dict(self.requests), "limits": dict(self.limits)}
        return {side: values for side, values in sides.items() if values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How the model is served. An empty `image` means the operator's own."""

    runtime: str = "Reference"
    image: str = ""
    context_length: int = 4096
    max_queue: int = 4096
    resources: Resources = field(default_factory=Resources)

    @classmethod
    def from_dict(cls, data: Object) -> Engine:
        return cls(
            runtime=text(data, "runtime", "Reference", one_of=("Reference",)),
            image=text(data, "image", ""),
            context_length=number(data, "contextLength", 4096, least=1),
            max_queue=number(data, "maxQueue", 4096, least=1),
            resources=Resources.from_dict(section(data, "resources")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePart:
    """What decides an engine. It is what a ControllerRevision stores and a revision names."""

    model: Model
    engine: Engine = field(default_factory=Engine)
    gpu: Gpu = field(default_factory=Gpu)
    decoding: Decoding = field(default_factory=Decoding)

    @classmethod
    def from_dict(cls, data: Object) -> EnginePart:
        model = section(data, "model")
        return cls(
            model=Model(source=text(model, "source"), revision=text(model, "revision", "")),
            engine=Engine.from_dict(section(data, "engine")),
            gpu=Gpu.from_dict(section(data, "gpu")),
            decoding=Decoding.from_dict(section(data, "decoding")),
        )

    def to_dict(self) -> dict[str, Any]:
        """Every field, texts that are empty left out."""
        model: dict[str, Any] = {"source": self.model.source, "revision": self.model.revision}
        engine: dict[str, Any] = {
            "runtime": self.engine.runtime,
            "image": self.engine.image,
            "contextLength": self.engine.context_length,
            "maxQueue": self.engine.max_queue,
            "resources": self.engine.resources.to_dict(),
        }
        parts: dict[str, dict[str, Any]] = {
            "model": model,
            "engine": engine,
            "gpu": self.gpu.to_dict(),
            "decoding": self.decoding.to_dict(),
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
