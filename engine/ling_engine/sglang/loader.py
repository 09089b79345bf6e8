"""SGLang's model loader of a slot: `--load-format private`, called in each scheduler for the target, then the draft.

One path for both: the model is built with large weights left without storage; the rank's side fills the slot's set
through SGLang's own loader, or maps the one that is there. Only releases that are tested have the names used here.
"""

from __future__ import annotations

import copy
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader import loader as stock
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.runtime_context import get_parallel

from ling_api.errors import BadInput, DeviceError, FillFailed, LingError
from ling_api.memory.memfd import MemfdMemory

from . import content, plugin, provenance, ranks, seat
from . import identity as identity_fields
from .bare import Bare
from .twin import ModelTwin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from torch import nn

    from ling_api.memory.base import RankMemory
    from ling_engine.cohort import Attached

_log = logging.getLogger(__name__)
_DSPARK = "LingDSparkModel"
_LENT = frozenset({"model.word_embeddings.weight", "lm_head.weight"})  # the target's, hung into a nextn draft later
_AT_ONCE_S = 1.0  # an answer that came so fast did not wait for somebody's fill


class PrivateModelLoader(stock.BaseModelLoader):  # type: ignore[misc]  # SGLang has no types
    """`preloaded_weights_bytes`: what of the set was on the device before SGLang looked how much is free."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        plugin.insist()

    def download_model(self, model_config: ModelConfig) -> None:
        """Nothing is downloaded: a slot's checkpoint is a folder."""

    def load_model(self, *, model_config: ModelConfig, device_config: DeviceConfig) -> nn.Module:
        """Raises the errors of ling_api.errors."""
        place, role, rank = seat.taken(), role_of(model_config), get_parallel().tp_rank
        identity = place.identities.get((role, rank))
        if identity is None:
            raise BadInput(f"SGLang loads {role} weights on rank {rank}, which this engine was not described with")
        began = time.monotonic()
        model, bare = self._build(model_config, device_config)
        _log.info("rank=%d role=%s built_ms=%.1f", rank, role, (time.monotonic() - began) * 1000)
        twin = ModelTwin(
            model,
            role=role,
            rank=rank,
            descend=_descends,
            absent=_LENT if role == "nextn" else frozenset(),
            bare=bare,
            loads=lambda progress: self._load(model, model_config, device_config, progress),
            looks=lambda: identity_fields.facts(provenance.checkpoint(Path(model_config.model_path))),
        )
        before, began = _free(place.memory), time.monotonic()
        attached = ranks.side(rank).attach(role, twin, identity, _memory(place.memory))
        waited = time.monotonic() - began > _AT_ONCE_S
        self.preloaded_weights_bytes = _resident(attached, before - _free(place.memory) if waited else 0)
        ranks.keep(role, model, attached)
        return model.eval()

    def _build(self, model_config: ModelConfig, device_config: DeviceConfig) -> tuple[nn.Module, Bare]:
        quantization = stock._get_quantization_config(model_config, self.load_config)
        bare = Bare()
        with set_default_torch_dtype(model_config.dtype), torch.device(device_config.device), bare:
            return stock._initialize_model(model_config, self.load_config, quantization), bare

    def _load(
        self,
        model: nn.Module,
        model_config: ModelConfig,
        device_config: DeviceConfig,
        progress: Callable[[float], None],
    ) -> str:
        """SGLang's own loader, over the bound memory; returns the checkpoint's sha256 when a revision asks for it."""
        asked = seat.taken().revision if role_of(model_config) != "dspark" else ""
        digest = content.begin(Path(model_config.model_path)) if asked else None
        config = copy.copy(self.load_config)
        config.load_format, config.model_loader_extra_config = LoadFormat.AUTO, {}
        default = stock.DefaultModelLoader(config)
        try:
            with set_default_torch_dtype(model_config.dtype):
                weights = default._get_all_weights(model_config, model)
                counted = _counted(weights, _bytes_in(Path(model_config.model_path)), progress)
                default.load_weights_and_postprocess(model, counted, torch.device(device_config.device))
        except LingError:
            raise
        except Exception as error:
            if ranks.exit_code(error) == DeviceError.exit_code:
                raise
            raise FillFailed(f"SGLang cannot load {model_config.model_path}: {error!r}") from error
        progress(1.0)
        return digest.result() if digest else ""


def role_of(model_config: ModelConfig) -> str:
    """target | nextn | dspark."""
    if not model_config.is_draft_model:
        return "target"
    return "dspark" if _DSPARK in (model_config.hf_config.architectures or ()) else "nextn"


def _descends(value: object) -> bool:
    """Objects of SGLang's own that hang in a model; not its process groups, which own buffers of their own."""
    module = type(value).__module__
    return module.startswith("sglang.") and not module.startswith("sglang.srt.distributed")


def _memory(kind: str) -> RankMemory:
    if kind == "memfd":
        return MemfdMemory()
    from ling_api.memory.cuda import CudaMemory  # needs a driver

    return CudaMemory(torch.cuda.current_device())


def _free(kind: str) -> int:
    return 0 if kind == "memfd" else torch.cuda.mem_get_info()[0]


def _resident(attached: Attached, taken_meanwhile: int) -> int:
    """Bytes of the set that were on the device before this rank's start; what came meanwhile is not among them."""
    if attached.filled or attached.mapping.device == "cpu":
        return 0
    return min(attached.manifest.nbytes, max(0, attached.manifest.nbytes - taken_meanwhile))


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _counted(weights: Any, total: int, progress: Callable[[float], None]) -> Iterator[tuple[str, torch.Tensor]]:
    done = 0
    for name, tensor in weights:
        yield name, tensor
        done += tensor.nbytes
        progress(min(done / max(total, 1), 0.999))
