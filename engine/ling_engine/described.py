"""What `check` found out, as the launcher keeps it and tells the agent: weight sets, memory plan, what kernels need."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ling_api.identity import Identity
from ling_api.v1 import agent_pb2 as pb

from .processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .processes import Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Empty until the model was described. The counterpart of `child.described`."""

    weights: tuple[pb.WeightSet, ...] = ()
    plan: Mapping[str, int] = field(default_factory=dict)
    device_bytes: int = 0
    gpus: tuple[str, ...] = ()
    jit: str = ""


def ask(processes: Processes, on_needs: Callable[[Needs], None], on_failed: Callable[[int], None]) -> None:
    """A fork of the zygote says what the model needs; a zygote that dies meanwhile is asked again."""
    found: dict[str, Any] = {}
    starts = processes.zygote_starts

    def told(message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] in ("described", "failed"):
            found.update(message)

    def ended(code: int) -> None:
        if found.get("op") == "described":
            on_needs(needs(found))
        elif found or processes.zygote_starts == starts:
            if found:
                print(f"ling-engine: {found['reason']}", file=sys.stderr)  # noqa: T201
            on_failed(code if code > 0 else 1)
        else:
            ask(processes, on_needs, on_failed)

    processes.fork("describe", Child(told=told, ended=ended))


def needs(found: Mapping[str, Any]) -> Needs:
    """From the frame that the describing child sent."""
    return Needs(
        weights=tuple(_weights(one) for one in found["sets"]),
        plan=found["plan"],
        device_bytes=found["device_bytes"],
        gpus=tuple(found["gpus"]),
        jit=found["jit"],
    )


def _weights(one: Mapping[str, Any]) -> pb.WeightSet:
    identity = one["identity"].encode()
    digest = Identity.from_bytes(identity).digest
    weights = pb.WeightSet(role=one["role"], rank=one["rank"], bytes=one["nbytes"], digest=digest)
    weights.identity = identity
    return weights
