"""What every GPU test needs; where it is missing, each is skipped with the reason."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from ling_api.errors import DeviceError
from ling_api.memory.cuda import CudaMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session", autouse=True)
def gpu() -> str:
    """The first GPU's UUID, in a process whose torch uses it too."""
    try:
        uuid = CudaMemory().uuid
    except DeviceError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    torch = pytest.importorskip("torch", reason="needs torch built for CUDA")
    if not torch.cuda.is_available():
        pytest.skip("needs torch built for CUDA; this one finds no GPU")
    return uuid


@pytest.fixture
def gpu_memory(gpu: str) -> Callable[[], int]:
    """MiB that nvidia-smi says are used, by whomever."""

    def used() -> int:
        command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    return used


@pytest.fixture(scope="session")
def table() -> Iterator[list[str]]:
    """Lines with figures; printed at the end of the run (see them with `-s`)."""
    lines: list[str] = []
    yield lines
    print("\n" + "\n".join(lines))
