"""What `check` found out, as the launcher keeps it and tells the agent: weight sets, memory plan, what kernels need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_api.identity import Identity
from ling_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Empty until the model was described. The counterpart of `child.described`."""

    weights: tuple[pb.WeightSet, ...] = ()
    plan: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    jit: str = ""


def needs(found: Mapping[str, Any]) -> Needs:
    """From the frame that the describing child sent."""
    return Needs(
        weights=tuple(_weights(one) for one in found["sets"]),
        plan=found["plan"],
        device_bytes=found["device_bytes"],
        jit=found["jit"],
    )


def _weights(one: Mapping[str, Any]) -> pb.WeightSet:
    identity = one["identity"].encode()
    digest = Identity.from_bytes(identity).digest
    weights = pb.WeightSet(role=one["role"], rank=one["rank"], bytes=one["nbytes"], digest=digest)
    weights.identity = identity
    return weights
