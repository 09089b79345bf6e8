"""What loading our lowest layer costs, and that the generated stubs are those of the .proto."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("api", "nodeagent")  # where a .proto of ours lies


def modules_after(statement: str) -> set[str]:
    """The modules that a bare interpreter has loaded after the statement."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'api')!r}); {statement}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, timeout=150)
    return set(result.stdout.split())


def test_the_package_itself_loads_nothing() -> None:
    assert modules_after("import ling_api") - modules_after("pass") == {"ling_api"}


def test_fdpass_loads_the_standard_library_only() -> None:
    loaded = modules_after("import ling_api.fdpass")
    ours = {name for name in loaded if name.partition(".")[0] == "ling_api"}
    assert ours == {"ling_api", "ling_api.fdpass"}
    roots = {name.partition(".")[0] for name in loaded - ours}
    assert roots - sys.stdlib_module_names - {"__main__"} == set()


@pytest.mark.parametrize("module", ["messages", "manifest", "memory.base", "memoryplan", "checks", "tensors"])
def test_no_module_loads_torch_or_grpc(module: str) -> None:
    roots = {name.partition(".")[0] for name in modules_after(f"import ling_api.{module}")}
    assert roots - sys.stdlib_module_names - {"__main__", "ling_api"} == set()


def generate(out: Path, *, offline: bool) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "UV_OFFLINE": "1"} if offline else dict(os.environ)
    return subprocess.run([ROOT / "hack/generate-stubs", out], capture_output=True, text=True, env=env, timeout=150)


def test_the_stubs_are_current(tmp_path: Path) -> None:
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed: whether the stubs are current was not tested")
    result = generate(tmp_path, offline=True)  # the compiler is in uv's cache after the first time
    if result.returncode:
        result = generate(tmp_path, offline=False)
    assert result.returncode == 0, result.stderr
    made = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*_pb2*")}
    kept = {
        str(path.relative_to(ROOT / room)): path.read_text()
        for room in ROOMS
        for path in (ROOT / room).rglob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert "ling_api/v1/agent_pb2.py" in made
    assert made == kept, "run hack/generate-stubs and commit what it writes"
