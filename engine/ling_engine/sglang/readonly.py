"""What SGLang can do that writes, moves or replaces weights: none of it may happen to weights that others share.

The memory itself is read-only: a write would kill the writer. So each of these operations is refused before it begins,
in the HTTP process (an answer with the reason) and again in the scheduler (which then ends rather than harm a set).
An SGLang that has the plug-in but no seat has weights of its own: it does as it likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import seat

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNNER: Final = "sglang.srt.model_executor.model_runner.ModelRunner"
_COMPONENTS: Final = "sglang.srt.model_executor.model_runner_components"

TARGETS: Final[dict[str, tuple[str, ...]]] = {
    # the HTTP process
    "sglang.srt.managers.tokenizer_manager.TokenizerManager": ("update_weights_from_disk",),
    "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin": (
        "init_weights_update_group",
        "begin_weight_update",
        "end_weight_update",
        "update_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "init_weights_send_group_for_remote_instance",
        "send_weights_to_remote_instance",
        "load_lora_adapter",
        "load_lora_adapter_from_tensors",
        "release_memory_occupation",
        "resume_memory_occupation",
        "check_weights",
    ),
    # the scheduler
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager": (
        "update_weights_from_disk",
        "init_weights_update_group",
        "update_weights_from_distributed",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
        "begin_weight_update",
        "end_weight_update",
        "release_memory_occupation",
        "resume_memory_occupation",
        "check_weights",
        "save_remote_model",
        "save_sharded_model",
    ),
    f"{_COMPONENTS}.weight_updater.WeightUpdater": (
        "init_weights_update_group",
        "update_weights_from_disk",
        "receive_weights_from_distributed",
        "load_weights_from_distributed",
        "begin_weight_update",
        "end_weight_update",
        "update_weights_from_tensor",
        "update_weights_from_ipc",
    ),
    f"{_COMPONENTS}.weight_exporter.WeightExporter": (
        "init_weights_send_group_for_remote_instance",
        "send_weights_to_remote_instance",
        "save_remote_model",
        "save_sharded_model",
    ),
    f"{_COMPONENTS}.startup_weight_load.StartupWeightLoadManager": ("create_from_published_config",),
    _RUNNER: ("load_lora_adapter", "load_lora_adapter_from_tensors", "check_weights"),
    "sglang.srt.lora.lora_manager.LoRAManager": (
        "__init__",
        "load_lora_adapter",
        "load_lora_adapter_from_tensors",
        "load_lora_weights",
        "load_lora_weights_from_tensors",
    ),
    "sglang.srt.eplb.eplb_manager.EPLBManager": ("rebalance",),
    "sglang.srt.eplb.expert_location_updater.ExpertLocationUpdater": ("update",),
    "sglang.srt.utils.offloader.OffloaderV1": ("__init__",),
    "sglang.srt.utils.offloader.OffloaderV2": ("__init__",),
    "sglang.srt.utils.weight_checker.WeightChecker": ("handle",),
}


class WeightsAreShared(RuntimeError):
    """Somebody asked SGLang to change weights that belong to the slot."""


def paths() -> tuple[str, ...]:
    """Every refused operation by its dotted path."""
    return tuple(f"{owner}.{name}" for owner, names in TARGETS.items() for name in names)


def refusal(path: str) -> Callable[..., None]:
    """What runs before the operation: raises WeightsAreShared in every process that has a seat."""
    owner, _, name = path.rpartition(".")
    operation = owner.rpartition(".")[2] if name == "__init__" else name

    def refuse(*args: Any, **kwargs: Any) -> None:
        if not seat.prepared():
            return
        raise WeightsAreShared(
            f"{operation} is not possible here: the weights belong to the slot and are shared, read-only, by its "
            "engines; change spec.model or spec.model.revision of the LingDeployment instead"
        )

    return refuse
