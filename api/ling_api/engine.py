"""How a checkpoint is served: runtime, image, limits, and what its pods get beside. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ling_api.fields import Object, entries, number, section, text, texts
from ling_api.quantity import parse_exact

REFERENCE: Final = "Reference"
SGLANG: Final = "SGLang"
RUNTIMES: Final = (REFERENCE, SGLANG)
_TOLERATION: Final = ("key", "operator", "value", "effect")

# what each field meant when it entered the schema; see enginepart.BASELINE
BASELINE: Final[Object] = {
    "runtime": REFERENCE,
    "image": "",
    "contextLength": 4096,
    "maxQueue": 4096,
    "extraArgs": [],
    "env": [],
}

type Pairs = tuple[tuple[str, str], ...]


def _pairs(data: Object, key: str) -> Pairs:
    """A map of texts, sorted by its keys."""
    found = section(data, key)
    return tuple(sorted((name, text(found, name)) for name in found))


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
class Place:
    """Where a slot's pods may be, and with what they are pulled: a part of the slot's shape."""

    node_selector: Pairs = ()
    tolerations: tuple[Pairs, ...] = ()
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Object) -> Place:
        return cls(
            node_selector=_pairs(data, "nodeSelector"),
            tolerations=tuple(
                tuple((key, text(one, key)) for key in _TOLERATION if key in one)
                for one in entries(data, "tolerations")
            ),
            priority_class=text(data, "priorityClassName", ""),
            pull_secrets=tuple(text(one, "name") for one in entries(data, "imagePullSecrets")),
        )

    def to_dict(self) -> dict[str, Any]:
        """As a pod's spec has it; only what was said."""
        said: dict[str, Any] = {
            "nodeSelector": dict(self.node_selector),
            "tolerations": [dict(one) for one in self.tolerations],
            "priorityClassName": self.priority_class,
            "imagePullSecrets": [{"name": name} for name in self.pull_secrets],
        }
        return {key: value for key, value in said.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """What a slot's pods get beside what the operator writes. All but `place` is the engine pods' only."""

    labels: Pairs = ()
    annotations: Pairs = ()
    runtime_class: str = ""
    place: Place = field(default_factory=Place)

    @classmethod
    def from_dict(cls, data: Object) -> PodTemplate:
        metadata, spec = section(data, "metadata"), section(data, "spec")
        return cls(
            labels=_pairs(metadata, "labels"),
            annotations=_pairs(metadata, "annotations"),
            runtime_class=text(spec, "runtimeClassName", ""),
            place=Place.from_dict(spec),
        )

    def to_dict(self) -> dict[str, Any]:
        """Only what was said."""
        metadata = {"labels": dict(self.labels), "annotations": dict(self.annotations)}
        spec = self.place.to_dict() | ({"runtimeClassName": self.runtime_class} if self.runtime_class else {})
        parts = {"metadata": {key: value for key, value in metadata.items() if value}, "spec": spec}
        return {part: said for part, said in parts.items() if said}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How the model is served. An empty `image` means the operator's own, `concurrency` 0 the runtime's own."""

    runtime: str = REFERENCE
    image: str = ""
    context_length: int = 4096
    max_queue: int = 4096
    concurrency: int = 0
    extra_args: tuple[str, ...] = ()
    env: Pairs = ()
    resources: Resources = field(default_factory=Resources)
    pod_template: PodTemplate = field(default_factory=PodTemplate)

    @classmethod
    def from_dict(cls, data: Object) -> Engine:
        return cls(
            runtime=text(data, "runtime", REFERENCE, one_of=RUNTIMES),
            image=text(data, "image", ""),
            context_length=number(data, "contextLength", 4096, least=1),
            max_queue=number(data, "maxQueue", 4096, least=1),
            concurrency=number(data, "concurrency", 0),
            extra_args=texts(data, "extraArgs"),
            env=tuple((text(one, "name"), text(one, "value", "")) for one in entries(data, "env")),
            resources=Resources.from_dict(section(data, "resources")),
            pod_template=PodTemplate.from_dict(section(data, "podTemplate")),
        )

    def to_dict(self) -> dict[str, Any]:
        numbers = {"concurrency": self.concurrency} if self.concurrency else {}
        return {
            "runtime": self.runtime,
            "image": self.image,
            "contextLength": self.context_length,
            "maxQueue": self.max_queue,
            **numbers,
            "extraArgs": list(self.extra_args),
            "env": [{"name": name, "value": value} for name, value in self.env],
            "resources": self.resources.to_dict(),
            "podTemplate": self.pod_template.to_dict(),
        }
