"""Values of the tests as the control protocol says them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ling_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from tests.support.rank_client import TestSet


def wire_set(weights: TestSet) -> pb.WeightSet:
    """The set as a hello names it."""
    identity = weights.identity
    return pb.WeightSet(
        role=weights.role,
        rank=weights.rank,
        bytes=weights.nbytes,
        digest=identity.digest,
        identity=identity.to_bytes(),
    )
