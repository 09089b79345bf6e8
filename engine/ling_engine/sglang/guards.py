"""Importing SGLang must leave CUDA untouched: questions about the device are answered from facts until `release`.

SGLang, FlashInfer and Triton ask torch.cuda for the device while they are imported. Each such question would call
`cuInit`, after which no fork of this process could use the GPU. What they ask, and where, was traced with 0.5.23.
"""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from .device import Facts

_state = {"armed": False, "answered": 0}
_OF_TRITON: Final = {  # what Triton calls a property of a device, by what torch calls it
    "max_shared_mem": "shared_memory_per_block_optin",
    "max_num_regs": "regs_per_multiprocessor",
    "multiprocessor_count": "multi_processor_count",
    "warpSize": "warp_size",
}


def environment(facts: Facts | None) -> dict[str, str]:
    """Variables that must be there before torch is imported."""
    always = {
        "OMP_NUM_THREADS": "1",  # pools of threads do not survive a fork
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if facts is None:
        return always
    major, minor = facts.capability
    return always | {
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() without cuInit
        "FLASHINFER_CUDA_ARCH_LIST": f"{major}.{minor}{'a' if major >= 9 else ''}",
    }


def set_environment(facts: Facts | None) -> None:
    """What the user has set stays."""
    for name, value in environment(facts).items():
        os.environ.setdefault(name, value)


def arm(facts: Facts) -> None:
    """Imports torch."""
    import torch

    total = facts.properties["total_memory"]
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "device_count": lambda: facts.count,
        "get_device_capability": lambda: facts.capability,
        "get_device_name": lambda: facts.properties["name"],
        "get_device_properties": lambda: types.SimpleNamespace(**facts.properties),
        "is_bf16_supported": lambda: facts.capability >= (8, 0),
        "mem_get_info": lambda: (total, total),
        "synchronize": lambda: None,
    }
    _state["armed"] = True
    for name, answer in answers.items():
        setattr(torch.cuda, name, _guarded(getattr(torch.cuda, name), answer))
    _answer_triton(facts.properties)


def _answer_triton(properties: dict[str, Any]) -> None:
    """Triton asks the driver itself. Without an answer SGLang takes a GPU for a small one (`fla/utils.py`:
    `check_shared_mem`), and tunes kernels of KDA's prompts among others than an SGLang that was started alone: each by
    times of its own, so with other roundings now and then."""
    import triton

    try:
        utils = triton.runtime.driver.active.utils
    except Exception:
        return
    known = {theirs: properties[ours] for theirs, ours in _OF_TRITON.items()}
    utils.get_device_properties = _guarded(utils.get_device_properties, lambda: known)


def release() -> None:
    """In a process that may use the GPU: from here on the driver itself is asked."""
    _state["armed"] = False


def answered() -> int:
    """How many questions never reached the driver."""
    return _state["answered"]


def _guarded(asks: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _state["armed"]:
            return asks(*args, **kwargs)
        _state["answered"] += 1
        return answer()

    return guarded
