"""The launcher and the room's pure part load no runtime: a process that only watches must stay small."""

import subprocess
import sys

import pytest
from tests.support.processes import PYTHONPATH


def loaded(module: str) -> set[str]:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("module", ["ling_engine.launcher", "ling_engine.commands"])
def test_no_torch_numpy_or_http_server_in_pid_1(module: str) -> None:
    assert not loaded(module) & {"torch", "numpy", "uvicorn", "starlette", "h11", "safetensors"}


def test_the_zygote_itself_loads_no_grpc() -> None:
    """gRPC starts threads; a zygote must have one."""
    assert not loaded("ling_engine.zygote") & {"grpc", "torch"}


def test_lifecycle_decides_without_the_world() -> None:
    assert not loaded("ling_engine.lifecycle") & {"asyncio", "grpc", "socket", "google"}
