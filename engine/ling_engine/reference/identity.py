"""What decides the bytes that the reference engine's loader leaves in memory, as an identity."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ling_api.identity import Identity
from ling_api.manifest import SCHEMA
from ling_engine.reference.tensorfile import INDEX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ling_engine.reference.config import Config
    from ling_engine.reference.tensorfile import Shard

_LAYOUT = {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1}


def identity_of(
    role: str, folder: Path, keys: Mapping[str, Any], c: Config, shards: Sequence[Shard], revision: str
) -> Identity:
    """`keys` is config.json as it stands; shards are known by name, size, time and header."""
    return Identity.of(
        role,
        {
            **facts(folder, keys, shards),
            "revision": revision or None,
            "dtype": c.dtype,
            "router_dtype": c.router_dtype,
            "quantization": None,
            "layout": _LAYOUT,
            "runtime": {"name": "reference", "ling": _version("ling"), "torch": torch.__version__, "source": _source()},
            "device": {"type": "cpu", "isa": torch.backends.cpu.get_cpu_capability()},
            "manifest": SCHEMA,
        },
    )


def facts(folder: Path, keys: Mapping[str, Any], shards: Sequence[Shard]) -> dict[str, Any]:
    """The fields that the checkpoint's files decide."""
    index = folder / INDEX
    return {
        "config": keys,
        "index": _sha256(index) if index.exists() else None,
        "shards": {s.path.name: {"size": s.size, "mtime_ns": s.mtime_ns, "header": s.header} for s in shards},
    }


def _source() -> str:
    """sha256 over this package's files: code that loads differently is another identity."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{file.name} {_sha256(file)}\n".encode())
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # run from the source tree; its files are hashed anyway
