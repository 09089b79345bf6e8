"""This process as a rank: its one RankSide, made when it is first needed, and what is told when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ling_api.errors import AttachCheckFailed, DeviceError, LingError

from . import seat
from .rank_side import RankSide

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_engine.cohort import Attached

_UNKNOWN = 1  # exit code of what is none of ling_api.errors
_sides: dict[int, RankSide] = {}  # by rank; a process is one rank
_kept: list[tuple[str, torch.nn.Module, Attached]] = []  # never let go: graphs hold addresses of the mappings


def side(rank: int) -> RankSide:
    """Raises PluginMissing in a process that no server of ours prepared."""
    if rank not in _sides:
        _sides[rank] = RankSide(seat.taken(), rank)
    return _sides[rank]


def keep(role: str, model: torch.nn.Module, attached: Attached) -> None:
    """A model and the set that it reads live as long as this process."""
    _kept.append((role, model, attached))


def watched(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around the scheduler: its failure becomes the server's exit code; once built, its models are complete."""
    try:
        result = original(*args, **kwargs)
        insist_on_complete_models()
    except Exception as error:
        code = exit_code(error)
        for one in _sides.values():
            one.failed(code, f"{type(error).__name__}: {error}" if code == _UNKNOWN else str(error))
        raise
    return result


def insist_on_complete_models() -> None:
    """What a draft was to be lent by the target is there by now. Raises AttachCheckFailed."""
    for role, model, _ in _kept:
        for name, parameter in model.named_parameters():
            if parameter.is_meta:
                raise AttachCheckFailed(f"parameter {name} of the {role} weights has no storage; nobody lent it one")


def exit_code(error: BaseException) -> int:
    """Of ling_api.errors: a device's error, wherever it shows, ends a process for good."""
    if isinstance(error, LingError):
        return error.exit_code
    words = str(error)
    device = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, torch.OutOfMemoryError)
        and any(mark in words for mark in ("CUDA error", "Triton Error [CUDA]", "cudaError"))
    )
    return DeviceError.exit_code if device else _UNKNOWN
