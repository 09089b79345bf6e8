"""What decides the bytes that SGLang's loader leaves in memory, as identities of the weight sets of one engine.

A strict list: whatever could change a byte is in it, so an image with another file in one of the named places fills
anew. Not in it: GPU UUID, driver, ports, sizes of caches; and for the target, how its engine decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_api.identity import Identity
from ling_api.manifest import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .allowed import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder as it lies there: its config.json's keys, sha256 of its index, facts of every shard by name."""

    config: Mapping[str, Any]
    index: str | None
    shards: Mapping[str, Mapping[str, Any]]  # name -> size, mtime_ns, sha256 of the header
    revision: str  # "sha256:<64 hex>" that its bytes must have, or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`versions` and `sources` (sha256) of runtime, loader and kernel libraries by name."""

    versions: Mapping[str, str | None]
    sources: Mapping[str, str]
    kind: str  # cpu or cuda
    capability: str  # of the GPU, as 9.0; of a CPU, its instruction set


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the weights are cut."""

    tp: int
    ep: int = 1


def identities(
    *,
    roles: Sequence[str],
    layout: Layout,
    target: Checkpoint,
    draft: Checkpoint | None,
    dtype: str,
    router_dtype: str,
    quantization: str,
    verdict: Verdict,
    machine: Machine,
) -> dict[tuple[str, int], Identity]:
    """By role and rank; ranks of a role share one identity. `dtype` and `router_dtype` as resolved."""
    common = {
        "dtype": dtype,
        "router_dtype": router_dtype,
        "quantization": quantization or None,
        "layout": {"tp": layout.tp, "pp": 1, "ep": layout.ep, "dp": 1, "cp": 1},
        "flags": verdict.common,
        "runtime": {"name": "sglang", "versions": dict(machine.versions), "sources": dict(machine.sources)},
        "device": {"type": machine.kind, "capability": machine.capability},
        "manifest": SCHEMA,
    }
    found: dict[tuple[str, int], Identity] = {}
    for role in roles:
        own = draft if role == "dspark" and draft is not None else target
        fields = common | facts(own) | {"revision": own.revision or None}
        if role != "target":
            fields["draft"] = verdict.draft
        if role == "dspark":
            fields["target_config"] = dict(target.config)
        identity = Identity.of(role, fields)
        found |= {(role, rank): identity for rank in range(layout.tp)}
    return found


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields that the checkpoint's files decide."""
    return {
        "config": dict(checkpoint.config),
        "index": checkpoint.index,
        "shards": {name: dict(known) for name, known in checkpoint.shards.items()},
    }
