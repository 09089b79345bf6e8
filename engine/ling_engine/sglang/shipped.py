"""The tuned tables that came with this package."""

from __future__ import annotations

from pathlib import Path

from .moe import Tables

FOLDER = Path(__file__).parents[1] / "moe_configs"


def tables(folder: Path = FOLDER) -> Tables:
    return Tables(folder=str(folder), names=frozenset(file.name for file in folder.glob("configs/triton_*/*.json")))
