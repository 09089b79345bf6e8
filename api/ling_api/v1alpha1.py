"""The custom resources `ling.dev/v1alpha1` as frozen values, and the revision of a LingDeployment.

The schema, its defaults and its rules live in `crds/*.yaml`; the defaults here are the same (a test compares them), for
objects that did not pass an API server. Two kinds of default must not be confused: what a field is *now* when it is
left out (the dataclasses' defaults), and BASELINE, what it meant when it entered the schema. A revision leaves out
every value that equals its baseline, so neither a new field nor a changed default ever rolls an engine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ling_api.errors import BadInput
from ling_api.quantity import parse_exact, parse_quantity

type Object = Mapping[str, Any]

MODEL_SOURCE: Final = re.compile(r"pvc://(?P<claim>[a-z0-9][-.a-z0-9]*)/(?P<inside>.*)|host:///(?P<path>[^/].*)")

# What each field of the engine part meant when it entered the schema. Never change a line; add one with each new field.
BASELINE: Final[Object] = {
    "model": {"revision": ""},
    "engine": {"runtime": "Reference", "image": "", "contextLength": 4096, "maxQueue": 4096},
    "gpu": {"allocation": "None"},
}


def _section(data: Object, key: str) -> Object:
    """A sub-object, {} when it is left out; BadInput when it is something else."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadInput(f"{key}: write an object, not {value!r}")
    return value


def _text(data: Object, key: str, default: str | None = None, *, one_of: Sequence[str] = ()) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        raise BadInput(f"{key}: write a text" if value is None else f"{key}: write a text, not {value!r}")
    if one_of and value not in one_of:
        raise BadInput(f"{key}: {value!r} is unknown here; write {' or '.join(one_of)}")
    return value


def _number(data: Object, key: str, default: int | None = None, *, least: int = 0) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{key}: write a whole number of at least {least}, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The checkpoint; `source` is pvc://CLAIM/PATH or host:///PATH, `revision` sha256:HEX or ""."""

    source: str
    revision: str = ""

    def __post_init__(self) -> None:
        if MODEL_SOURCE.fullmatch(self.source) is None or ".." in self.source.split("/"):
            raise BadInput(f"model.source: {self.source!r}: write pvc://CLAIM/PATH or host:///PATH")

    @property
    def claim(self) -> str:
        """The PersistentVolumeClaim of pvc://, "" for host://."""
        found = MODEL_SOURCE.fullmatch(self.source)
        return (found and found["claim"]) or ""

    @property
    def path(self) -> str:
        """The path inside the claim or below the model folder, without slashes at its ends."""
        found = MODEL_SOURCE.fullmatch(self.source)
        return ((found and (found["inside"] or found["path"])) or "").strip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits of the engine container, as sorted pairs of name and quantity as written."""

    requests: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_dict(cls, data: Object) -> Resources:
        def pairs(key: str) -> tuple[tuple[str, str], ...]:
            found = tuple(sorted((name, str(value)) for name, value in _section(data, key).items()))
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
            runtime=_text(data, "runtime", "Reference", one_of=("Reference",)),
            image=_text(data, "image", ""),
            context_length=_number(data, "contextLength", 4096, least=1),
            max_queue=_number(data, "maxQueue", 4096, least=1),
            resources=Resources.from_dict(_section(data, "resources")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePart:
    """What decides an engine: model, engine, gpu. It is what a ControllerRevision stores and a revision names."""

    model: Model
    engine: Engine = field(default_factory=Engine)
    gpu_allocation: str = "None"

    @classmethod
    def from_dict(cls, data: Object) -> EnginePart:
        model = _section(data, "model")
        return cls(
            model=Model(source=_text(model, "source"), revision=_text(model, "revision", "")),
            engine=Engine.from_dict(_section(data, "engine")),
            gpu_allocation=_text(_section(data, "gpu"), "allocation", "None", one_of=("None",)),
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
            "gpu": {"allocation": self.gpu_allocation},
        }
        return {part: {k: v for k, v in values.items() if v not in ("", {})} for part, values in parts.items()}


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
    text = json.dumps(_effective(data, BASELINE), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class LingDeploymentSpec:
    """`spec` of a LingDeployment. `memory` is in bytes, times in seconds."""

    part: EnginePart
    memory: int
    replicas: int = 1
    strategy: str = "Auto"
    progress_deadline_seconds: int = 900
    grace_seconds: int = 120
    port: int = 80
    hold_seconds: int = 60

    @classmethod
    def from_dict(cls, data: Object) -> LingDeploymentSpec:
        """BadInput, with the field's name, when the object makes no sense to this version."""
        rollout, cache, service = _section(data, "rollout"), _section(data, "weightCache"), _section(data, "service")
        if "memory" not in cache:
            raise BadInput("weightCache.memory: write a quantity such as 8Gi")
        return cls(
            part=EnginePart.from_dict(data),
            memory=parse_quantity(cache["memory"]),
            replicas=_number(data, "replicas", 1),
            strategy=_text(rollout, "strategy", "Auto", one_of=("Auto",)),
            progress_deadline_seconds=_number(rollout, "progressDeadlineSeconds", 900, least=1),
            grace_seconds=_number(_section(data, "drain"), "graceSeconds", 120, least=1),
            port=_number(service, "port", 80, least=1),
            hold_seconds=_number(service, "holdSeconds", 60, least=1),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.part.to_dict(),
            "replicas": self.replicas,
            "weightCache": {"memory": str(self.memory)},
            "rollout": {"strategy": self.strategy, "progressDeadlineSeconds": self.progress_deadline_seconds},
            "drain": {"graceSeconds": self.grace_seconds},
            "service": {"port": self.port, "holdSeconds": self.hold_seconds},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The engine pod that is to become active, if the slot is still at `term`."""

    pod: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LingSlotSpec:
    """`spec` of a LingSlot: what the operator wants of one slot. `capacity` is in bytes; `revisions` is sorted."""

    deployment: str
    revision: str
    revisions: tuple[str, ...]
    capacity: int
    grace_seconds: int
    hold_seconds: int
    wish: Wish | None = None

    @classmethod
    def from_dict(cls, data: Object) -> LingSlotSpec:
        wish = _section(data, "wish")
        return cls(
            deployment=_text(data, "deployment"),
            revision=_text(data, "revision"),
            revisions=tuple(sorted(str(one) for one in data.get("revisions") or ())),
            capacity=_number(data, "capacity", least=1),
            grace_seconds=_number(data, "graceSeconds", least=1),
            hold_seconds=_number(data, "holdSeconds", least=1),
            wish=Wish(pod=_text(wish, "pod"), term=_number(wish, "term")) if wish else None,
        )

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "deployment": self.deployment,
            "revision": self.revision,
            "revisions": list(self.revisions),
            "capacity": self.capacity,
            "graceSeconds": self.grace_seconds,
            "holdSeconds": self.hold_seconds,
        }
        if self.wish is not None:
            data["wish"] = {"pod": self.wish.pod, "term": self.wish.term}
        return data
