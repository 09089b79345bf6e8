"""In which order the zygote gets ready: what must come before SGLang's first import does."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import flash

from ling_api.errors import DeviceError, PluginMissing
from ling_engine.runtime import ModelSettings
from ling_engine.sglang import device, guards, late, preload, provenance
from ling_engine.sglang.device import Facts
from ling_engine.sglang.runtime import Sglang

if TYPE_CHECKING:
    from pathlib import Path

H200 = Facts(count=1, properties={"major": 9, "minor": 0, "name": "NVIDIA H200", "total_memory": 150 << 30})


class Stage:
    """Every step of a preload, with whether SGLang was imported by then and what it would read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, bool]] = []
        self.interval = ""
        self.touched = False
        patch.setattr(os, "environ", dict(os.environ))
        patch.setattr(device, "visible", lambda: True)
        patch.setattr(device, "facts", lambda: H200)
        patch.setattr(device, "initialized", lambda: self.touched)
        patch.setattr(importlib.util, "find_spec", lambda name: object())
        patch.setattr(guards, "arm", lambda facts: self.step("arm"))
        patch.setattr(preload, "plugins", lambda: self.step("plugins"))
        patch.setattr(preload, "modules", lambda architecture: self.step(f"modules of {architecture}"))
        patch.setattr(provenance, "machine", lambda *_: None)

    def step(self, name: str) -> None:
        self.steps.append((name, "sglang" in sys.modules))
        self.interval = os.environ.get("SGLANG_FORCE_STREAM_INTERVAL", "")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> ModelSettings:
    (tmp_path / "config.json").write_text(json.dumps(flash.target()))
    return ModelSettings(path=tmp_path, revision="", context_length=4096, max_queue=1, served_name="m")


def test_nothing_of_sglang_is_imported_before_its_questions_are_answered(stage: Stage, model: ModelSettings) -> None:
    """Its very first module asks for the device's name, which would call the driver."""
    Sglang().preload(model)
    assert stage.steps == [("arm", False), ("plugins", False), ("modules of BailingMoeV3ForCausalLM", False)]
    assert "sglang" not in sys.modules


def test_what_modules_read_while_they_are_imported_is_set_before(stage: Stage, model: ModelSettings) -> None:
    Sglang().preload(model)
    assert stage.interval == "67"
    assert os.environ["TRITON_CACHE_AUTOTUNING"] == "1"
    assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == "9.0a"
    assert os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "ling_engine.sglang.architectures"


def test_a_package_of_models_that_the_user_names_is_kept(
    stage: Stage, model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] = "theirs"
    Sglang().preload(model)
    assert os.environ["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "theirs"


def test_a_zygote_that_called_the_driver_ends(stage: Stage, model: ModelSettings) -> None:
    stage.touched = True
    with pytest.raises(DeviceError, match="no fork of this zygote could use the GPU"):
        Sglang().preload(model)


def test_without_sglang_it_is_said(stage: Stage, model: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginMissing, match="has no SGLang"):
        Sglang().preload(model)
    assert stage.steps == []


LOAD_A_LIBRARY = {  # of a device, on a GPU: a rank imports them
    "sglang.kernels.ops.attention.flash_mla_interface", "sglang.srt.constrained.xgrammar_backend",
    "sglang.srt.distributed.device_communicators.custom_all_reduce",
    "sglang.srt.layers.attention.flashattention_backend", "sglang.srt.layers.attention.flashmla_backend",
}  # fmt: skip


def test_late_modules_know_nothing_of_a_device() -> None:
    rooms = ("kernels.ops", "srt.layers.attention", "srt.mem_cache", "srt.distributed.device_communicators", "srt.dllm")
    ours = tuple(f"sglang.{room}." for room in rooms)
    others = [name for name in late.MODULES if not name.startswith(ours)]
    assert {name.split(".")[0] for name in others} == {"torch", "sympy", "tomllib"}
    assert not LOAD_A_LIBRARY & set(late.MODULES)


class Registry:
    """SGLang's registry of models."""

    def __init__(self, *known: str) -> None:
        self.models = dict.fromkeys(known)
        self.imported_all = False
        self.ModelRegistry = self

    def get_supported_archs(self) -> list[str]:
        self.imported_all = True
        return []


@pytest.mark.parametrize(("known", "all_imported"), [("Ling", False), ("Other", True)], ids=["ours", "another"])
def test_every_model_is_imported_for_an_architecture_that_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, known: str, all_imported: bool
) -> None:
    registry = Registry(known)
    monkeypatch.setattr(importlib, "import_module", lambda name: registry)
    preload.modules("Ling")
    assert registry.imported_all is all_imported


def test_a_module_that_a_release_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(name: str) -> Any:
        asked.append(name)
        if name in late.MODULES:
            raise ImportError(name)
        return Registry("Ling")

    monkeypatch.setattr(importlib, "import_module", find)
    preload.modules("Ling")
    assert set(late.MODULES) <= set(asked)
