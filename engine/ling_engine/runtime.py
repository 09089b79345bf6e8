"""What an engine runtime must offer to be served from a slot: describe itself, build, fill, serve.

The reference engine and SGLang are runtimes; so is the torch-free stand-in of the tests. A runtime is chosen by name
(`reference`) or as `module:attribute`. The engine room does everything else: launcher, zygote, attach, socket, drain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .decoding import PLAIN, Decoding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp

    from ling_api.identity import Identity, Value
    from ling_api.manifest import Layout, Manifest, TensorEntry, TensorSpec
    from ling_api.memory.base import Mapping
    from ling_api.memoryplan import MemoryPlan


REQUIRED, PREFERRED, OFF = "Required", "Preferred", "Off"  # weightCache.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The part of an engine's settings that decides what is loaded and how it is served."""

    path: Path
    revision: str  # "sha256:<64 hex>" of the checkpoint's bytes, or "" for whatever lies there
    context_length: int
    max_queue: int
    served_name: str
    decoding: Decoding = PLAIN
    tp: int = 1  # ranks
    concurrency: int = 4  # requests that run at once
    dtype: str = "auto"  # auto | bfloat16 | float32
    router_dtype: str = ""  # fp32 | bf16, "" = as the checkpoint says
    weight_cache: str = REQUIRED
    extra_args: tuple[str, ...] = ()  # for the runtime's own command line, each already one word
    for_gpu: str = ""  # compute capability of a GPU that is not here: `describe` is asked about it


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDescription:
    """One weight set that a server will attach: what it is and how many bytes its regions take."""

    role: str  # target | nextn | dspark
    rank: int
    identity: Identity
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What `check` finds out without reading a weight: the sets, and the memory beside them."""

    sets: tuple[SetDescription, ...]
    plan: MemoryPlan
    device_bytes: int = 0  # memory of all GPUs that a server uses; 0 = it uses the host's
    gpus: tuple[str, ...] = ()  # their UUIDs in rank order
    jit: str = ""  # 64 hex digits of all that kernels compiled at run time depend on; "" = none are


class WeightTwin(Protocol):
    """The parameters of one weight set, without storage until `bind`."""

    role: str
    rank: int

    def specs(self) -> Sequence[TensorSpec]:
        """Every parameter's name, dtype, shape and stride; aliases by storage identity."""

    def bind(self, mapping: Mapping, layout: Layout) -> None:
        """Points every parameter into the mapping, without a copy. Raises AttachCheckFailed on any mismatch."""

    def load(self, progress: Callable[[float], None]) -> str:
        """Reads the checkpoint into the bound parameters (filling rank only); returns the sha256 of its bytes.

        "" = not known: the set is a part of a checkpoint and no revision asked for the rest to be read.
        Raises FillFailed when a tensor is unused or missing; `progress` takes 0..1.
        """


@runtime_checkable
class SettlingTwin(WeightTwin, Protocol):
    """A twin whose runtime replaces tensors while it loads, so that the set is known in full only afterwards.

    An attacher is not bound by its own specs, but takes on what the filler wrote down.
    """

    def tail(self, mapping: Mapping, layout: Layout) -> int:
        """After `load`: the bytes that the set needs behind its layout. Raises FillFailed."""

    def settle(self, mapping: Mapping, start: int) -> tuple[tuple[TensorEntry, ...], str]:
        """Moves what was replaced into the set, its tail beginning at `start`; the set's tensors and their form."""

    def attach(self, mapping: Mapping, manifest: Manifest) -> None:
        """Takes on the filled set's tensors and form, without a copy of a weight. Raises AttachCheckFailed."""


@runtime_checkable
class ReadingTwin(WeightTwin, Protocol):
    """A twin whose checkpoint may be looked at once more when it was read."""

    def facts(self) -> dict[str, Value]:
        """The fields of the set's identity that its files decide, as the files are now. Raises BadInput."""


class ServedModel(Protocol):
    """A model in a server process: first its twins are attached, then it serves."""

    twins: Sequence[WeightTwin]

    def warm_up(self) -> None:
        """One short generation; afterwards the first request pays for nothing."""

    def prove(self) -> None:
        """One token whose id is known, while parked. Raises DeviceError when another one comes."""

    def app(self) -> ASGIApp:
        """The OpenAI-compatible application; it calls ling_engine.requests hooks for tokens and queue length."""


@runtime_checkable
class DraftingModel(ServedModel, Protocol):
    """A model that may decode speculatively."""

    draft_tokens: int
    """Rows that the target verifies a round, the most tokens that a round gives; 0 = it decodes plainly."""


class Runtime(Protocol):
    """A way to run the model."""

    name: str

    native_threads: bool
    """Whether its imports may leave threads outside Python, of which a fork keeps none (say there why no lock of
    theirs is missed)."""

    def preload(self, settings: ModelSettings) -> None:
        """Imports everything that a server needs, in the zygote: no device, no Python thread, no file left open."""

    def describe(self, settings: ModelSettings) -> Description:
        """Raises BadInput with one sentence when the model or a setting is wrong. Reads headers, never weights."""

    def open(self, settings: ModelSettings) -> ServedModel:
        """In the server process."""


@runtime_checkable
class CompilingRuntime(Runtime, Protocol):
    """A runtime that compiles kernels while it runs."""

    def kernels(self, settings: ModelSettings) -> str:
        """`Description.jit`, asked for before `preload`: from files, without the imports that take long."""
