"""Questions about the GPU never reach the driver before a rank is forked."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ling_api.errors import BadInput
from ling_engine.sglang import device, elsewhere, guards
from ling_engine.sglang.describe import Device
from ling_engine.sglang.device import Facts

if TYPE_CHECKING:
    from collections.abc import Iterator

H200 = Facts(
    count=2,
    properties={
        "major": 9, "minor": 0, "name": "NVIDIA H200", "total_memory": 150 << 30, "warp_size": 32,
        "shared_memory_per_block_optin": 232448, "regs_per_multiprocessor": 65536, "multi_processor_count": 132,
    },
)  # fmt: skip
ASKED: dict[str, Any] = {
    "current_device": 0,
    "device_count": 2,
    "get_device_capability": (9, 0),
    "get_device_name": "NVIDIA H200",
    "is_bf16_supported": True,
    "mem_get_info": (150 << 30, 150 << 30),
    "synchronize": None,
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the questions that reached torch.cuda itself."""
    reached: list[str] = []

    def original(name: str) -> Any:
        return lambda *_args, **_kwargs: reached.append(name)

    for name in (*ASKED, "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, original(name))
    utils = SimpleNamespace(get_device_properties=original("Triton's"))
    active = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=active)))
    yield reached
    guards.release()


def test_facts_answer_until_a_rank_may_ask_itself(driver: list[str]) -> None:
    guards.arm(H200)
    before = guards.answered()
    assert {name: getattr(torch.cuda, name)() for name in ASKED} == ASKED
    assert torch.cuda.get_device_properties(0).total_memory == 150 << 30
    assert (driver, guards.answered() - before) == ([], len(ASKED) + 1)
    held = torch.cuda.get_device_capability  # as `from torch.cuda import ...` does
    guards.release()
    held(0)
    torch.cuda.current_device()
    assert driver == ["get_device_capability", "current_device"]


def test_triton_is_answered_too_so_that_a_gpu_is_not_taken_for_a_small_one(driver: list[str]) -> None:
    guards.arm(H200)
    utils = sys.modules["triton"].runtime.driver.active.utils
    assert utils.get_device_properties(0) == {
        "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32,
    }  # fmt: skip
    guards.release()
    utils.get_device_properties(0)
    assert driver == ["Triton's"]


def test_without_a_driver_of_tritons_there_is_nobody_to_answer(
    driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        @property
        def active(self) -> Any:
            raise RuntimeError("0 active drivers")

    monkeypatch.setattr(sys.modules["triton"].runtime, "driver", Driver())
    guards.arm(H200)
    assert torch.cuda.device_count() == 2


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        (None, {"PYTORCH_NVML_BASED_CUDA_CHECK": None, "FLASHINFER_CUDA_ARCH_LIST": None}),
        (H200, {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "FLASHINFER_CUDA_ARCH_LIST": "9.0a"}),
        (Facts(count=1, properties={"major": 8, "minor": 9}), {"FLASHINFER_CUDA_ARCH_LIST": "8.9"}),
    ],
    ids=["no GPU", "Hopper", "Ada"],
)
def test_variables(facts: Facts | None, wanted: dict[str, str | None]) -> None:
    found = guards.environment(facts)
    assert found["OMP_NUM_THREADS"] == "1"
    assert {name: found.get(name) for name in wanted} == wanted


def test_this_process_has_not_called_the_driver() -> None:
    assert not device.initialized()


def test_a_machine_without_a_gpu_is_one_of_the_cpu_family() -> None:
    assert device.described(None).kind == "cpu"
    assert device.described(H200).text == "9.0"


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [((9, 0), {"is_sm90": True, "device_sm": 90}), ((10, 0), {"is_sm100": True, "device_sm": 100})],
    ids=["Hopper", "Blackwell"],
)
def test_sglang_is_told_of_a_gpu_that_is_not_here(capability: tuple[int, int], wanted: dict[str, Any]) -> None:
    found = elsewhere.facts(Device(capability=capability))
    assert found["is_cuda"]
    assert {name: found[name] for name in wanted} == wanted


def test_a_gpu_without_a_recipe_is_refused() -> None:
    with pytest.raises(BadInput, match="compute capability 7"):
        elsewhere.facts(Device(capability=(7, 5)))
