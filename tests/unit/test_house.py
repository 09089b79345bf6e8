"""The house's own rules that no checker knows: what the keeper may load, how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "api/ling_api",
    "operator/ling_operator",
    "operator/ling_kubectl",
    "nodeagent/ling_nodeagent",
    "engine/ling_engine",
    "bench/ling_bench",
)
KEEPER = ("keeper.py", "keeper_memory.py", "keeper_probes.py")
HARD_LIMIT = 320


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator/__init__.py").exists()


def imported(source: Path) -> set[str]:
    """Every module that a file imports, at whatever depth; relative ones with their dots."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names.update(f"{base}.{alias.name}" if not node.module else base for alias in node.names)
            if base == "ling_api":
                names.update(f"ling_api.{alias.name}" for alias in node.names)
                names.discard("ling_api")
    return names


@pytest.mark.parametrize("file", KEEPER)
def test_keeper_imports_the_standard_library_and_fdpass_alone(file: str) -> None:
    allowed = {"ling_api.fdpass", "ling_nodeagent.keeper_memory", "ling_nodeagent.keeper_probes", "ling_nodeagent"}
    others = {
        name
        for name in imported(ROOT / "nodeagent/ling_nodeagent" / file)
        if name.partition(".")[0] not in sys.stdlib_module_names and name not in allowed
    }
    assert not others


@pytest.mark.parametrize("room", ROOMS)
def test_modules_are_small_and_say_their_duty_first(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        text = file.read_text()
        if "_pb2" in file.name or not text.strip():
            continue
        assert ast.get_docstring(ast.parse(text)), f"{file.relative_to(ROOT)}: says nothing about its duty"
        lines = text.count("\n")
        assert lines <= HARD_LIMIT, f"{file.relative_to(ROOT)}: {lines} lines; split it"


def test_the_packages_import_nothing_by_themselves() -> None:
    code = "import sys, ling_api; print([n for n in sys.modules if n.startswith('ling_api.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
