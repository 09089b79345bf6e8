"""What is served: the checkpoint, and how its tokens are found. Pure values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from ling_api.errors import BadInput
from ling_api.fields import Object, number, section, text

_SOURCE: Final = re.compile(r"pvc://(?P<claim>[a-z0-9][-.a-z0-9]*)/(?P<inside>.*)|host:///(?P<path>[^/].*)")

ALGORITHMS: Final = ("None", "NEXTN", "DSPARK")
DTYPES: Final = ("auto", "bfloat16", "float32")
ROUTER_DTYPES: Final = ("fp32", "bf16")

# what each field meant when it entered the schema; see enginepart.BASELINE
MODEL_BASELINE: Final[Object] = {"revision": "", "dtype": "auto", "routerDtype": ""}
DECODING_BASELINE: Final[Object] = {"algorithm": "None"}


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
    """The checkpoint; `revision` is sha256:HEX or "". `router_dtype` "" is what the checkpoint says."""

    source: str
    revision: str = ""
    dtype: str = "auto"
    router_dtype: str = ""

    def __post_init__(self) -> None:
        self.check("model.source")

    @classmethod
    def from_dict(cls, data: Object) -> Model:
        return cls(
            source=text(data, "source"),
            revision=text(data, "revision", ""),
            dtype=text(data, "dtype", "auto", one_of=DTYPES),
            router_dtype=text(data, "routerDtype", "", one_of=("", *ROUTER_DTYPES)),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "revision": self.revision,
            "dtype": self.dtype,
            "routerDtype": self.router_dtype,
        }


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
