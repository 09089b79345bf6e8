"""The kinds of processor that recipes are written for, found by the GPU's compute capability."""

from __future__ import annotations

from enum import StrEnum

from ling_api.errors import BadInput


class Family(StrEnum):
    """CPU is SGLang's real code in a Triton interpreter: for tests, thousands of times too slow to serve."""

    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CPU = "cpu"


def family(capability: tuple[int, int] | None) -> Family:
    """Of a GPU with that compute capability; None = there is no GPU. Raises BadInput for GPUs without a recipe."""
    match capability:
        case None:
            return Family.CPU
        case (9, _):
            return Family.HOPPER
        case (10, _):
            return Family.BLACKWELL
        case (major, minor):
            raise BadInput(
                f"a GPU of compute capability {major}.{minor}: there are recipes for 9.x (Hopper) and 10.x (Blackwell)"
            )
