"""What an engine that runs SGLang needs and is, without a server: sets with identities, and the memory plan.

Nothing here touches a GPU or reads a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import BadInput
from ling_api.memoryplan import MemoryPlan
from ling_engine.reference.config import load_keys
from ling_engine.runtime import Description, SetDescription

from . import allowed, arguments, families, hook_variables, provenance, resolution, shipped, wishes
from .identity import Layout, identities
from .shape import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_engine.runtime import ModelSettings

    from .arguments import Arguments
    from .wishes import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`capability` None = no GPU; `isa` is then the CPU's instruction set."""

    capability: tuple[int, int] | None
    isa: str = ""

    @property
    def kind(self) -> str:
        return "cpu" if self.capability is None else "cuda"

    @property
    def text(self) -> str:
        return self.isa if self.capability is None else "{}.{}".format(*self.capability)


def command(
    settings: ModelSettings, device: Device, environ: Mapping[str, str] = arguments.NOTHING
) -> tuple[Wishes, Arguments]:
    """How SGLang is called, from headers alone; SGLang itself is not needed. Raises BadInput."""
    wanted = wishes.of(settings)
    draft = load_keys(Path(wanted.draft)) if wanted.draft else None
    shape = shape_of(load_keys(settings.path), draft)
    family = families.family(device.capability)
    return wanted, arguments.command_line(wanted, shape, family, shipped.tables(), environ)


def describe(settings: ModelSettings, device: Device, environ: Mapping[str, str]) -> Description:
    """`environ` as it was before SGLang was imported, which sets some itself.

    Raises BadInput with one sentence: of ours, or SGLang's own.
    """
    wanted, called = command(settings, device, environ)
    hook_variables.few_rows(environ)
    hook_variables.accept_in_graph(environ)
    found = resolution.resolve(called.argv)
    variables = {name: value for name, value in {**environ, **called.env}.items() if name.startswith("SGLANG_")}
    verdict = allowed.judge(found.resolved, found.defaults, variables, wanted.weight_cache)
    target = provenance.checkpoint(settings.path, settings.revision)
    shape = shape_of(target.config)
    roles = arguments.roles(wanted.algorithm)
    named = identities(
        roles=roles,
        layout=Layout(tp=wanted.tp, ep=int(found.resolved["ep_size"])),
        target=target,
        draft=provenance.checkpoint(Path(wanted.draft)) if wanted.draft else None,
        dtype=_dtype(str(found.resolved["dtype"]), shape.dtype),
        router_dtype=wanted.router_dtype or shape.router_dtype,
        quantization=shape.quantization,
        verdict=verdict,
        machine=provenance.machine(device.kind, device.text),
    )
    return Description(
        sets=tuple(
            SetDescription(role=role, rank=rank, identity=named[role, rank], nbytes=called.weights[role])
            for role in roles
            for rank in range(wanted.tp)
        ),
        plan=MemoryPlan({purpose: nbytes * wanted.tp for purpose, nbytes in called.plan.private.items()}),
    )


def _dtype(asked: str, stored: str) -> str:
    if asked == "auto" and stored not in ("bfloat16", "float16", "float32"):
        raise BadInput(f"the checkpoint's dtype is {stored}; write --dtype bfloat16 or float32")
    return stored if asked == "auto" else asked
