"""Reads what an identity needs from disk: checkpoints' headers, and versions and hashes of the code that loads them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ling_engine.reference.config import load_keys
from ling_engine.reference.tensorfile import INDEX, shards

from .identity import Checkpoint, Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGES = ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "sgl-deep-gemm", "transformers")
_RUNTIME = (
    "model_loader",
    "models",
    "layers",
    "configs",
    "distributed",
    "weight_cache",
    "model_executor",
)  # of sglang.srt
_OURS = ("ling_engine/sglang", "ling_api/tensors.py", "ling_api/manifest.py", "ling_api/memory")
_TABLES = "moe_configs"  # of ling_engine: they change no byte of a set, but how those who share it round


def checkpoint(folder: Path, revision: str = "") -> Checkpoint:
    """Headers only. Raises BadInput."""
    index = folder / INDEX
    return Checkpoint(
        config=load_keys(folder),
        index=_sha256(index) if index.exists() else None,
        shards={s.path.name: {"size": s.size, "mtime_ns": s.mtime_ns, "header": s.header} for s in shards(folder)},
        revision=revision,
    )


def machine(kind: str, capability: str) -> Machine:
    """Of this environment; computed once a process, or inherited from the zygote."""
    versions, sources = _code()
    return Machine(versions=versions, sources=sources, kind=kind, capability=capability)


def code_digest(kind: str, capability: str) -> str:
    """sha256 of all that compiled kernels depend on: libraries, their files, the GPU's kind."""
    return hashlib.sha256(json.dumps(asdict(machine(kind, capability)), sort_keys=True).encode()).hexdigest()


@functools.cache
def _code() -> tuple[dict[str, str | None], dict[str, str]]:
    """Libraries by their list of files with hashes; what loads the weights, SGLang's part and ours, by its files."""
    versions: dict[str, str | None] = {}
    sources: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
            continue
        versions[name] = found.version
        record = found.read_text("RECORD")
        if record is not None:
            # Byte code is written on the machine; everything else in the list comes from the package.
            lines = sorted(line for line in record.splitlines() if ".pyc," not in line and "INSTALLER" not in line)
            sources[name] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    spec = importlib.util.find_spec("sglang")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent / "srt"
        for part in _RUNTIME:
            sources[f"sglang/srt/{part}"] = _tree(root, sorted((root / part).rglob("*.py")))
    for part in _OURS:
        package, _, inside = part.partition("/")
        found_spec = importlib.util.find_spec(package)
        if found_spec is None or not found_spec.submodule_search_locations:
            continue
        base = Path(found_spec.submodule_search_locations[0])
        path = base / inside
        sources[part] = _tree(base, [path] if path.is_file() else sorted(path.glob("*.py")))
    tables = Path(__file__).parents[1] / _TABLES
    sources[_TABLES] = _tree(tables, sorted(tables.rglob("*.json")))
    return versions, sources


def _tree(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(root)} {_sha256(file)}\n".encode())
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
