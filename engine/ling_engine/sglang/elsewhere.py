"""SGLang told that it runs on a machine with a GPU that is not here: for `check`, which no GPU is held for.

By SGLang's own seam for its tests of platforms. Its versions of kernels and the driver's facts are not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .families import Family, family

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .describe import Device

_FACTS: dict[Family, dict[str, bool]] = {
    Family.HOPPER: {"is_sm90": True, "is_sm100": False, "is_hopper_with_cuda_12_3": True, "is_blackwell": False},
    Family.BLACKWELL: {
        "is_sm90": False,
        "is_sm100": True,
        "is_sm100_or_sm110": True,
        "is_hopper_with_cuda_12_3": False,
        "is_blackwell": True,
    },
}


def facts(device: Device) -> dict[str, Any]:
    """What SGLang's platform then says of itself. Raises BadInput for a GPU without a recipe."""
    assert device.capability is not None, "of a GPU"  # noqa: S101
    major, minor = device.capability
    known = {
        "is_cuda": True,
        "has_flashinfer": True,
        "device_sm": 10 * major + minor,
        "device_capability": (major, minor),
    }
    return known | _FACTS[family(device.capability)]


def told(device: Device) -> AbstractContextManager[Any]:
    """Imports SGLang."""
    from sglang.srt.runtime_context import override_platform

    context: AbstractContextManager[Any] = override_platform(**facts(device))
    return context
