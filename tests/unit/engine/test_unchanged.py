"""Weights are sealed as what their identity says, or not at all: a checkpoint that changed meanwhile is no fill."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ling_api.errors import BadInput, CheckpointChanged
from ling_engine import unchanged
from ling_engine.reference import checkpoint, tensorfile
from ling_engine.reference.runtime import RUNTIME
from ling_engine.runtime import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint.make_model(tmp_path / "model")
    return tmp_path / "model"


def known(folder: Path) -> tuple[Any, Any]:
    """The twin, and the identity that was computed before the load."""
    settings = ModelSettings(path=folder, revision="", context_length=64, max_queue=1, served_name="m")
    return RUNTIME.open(settings).twins[0], RUNTIME.describe(settings).sets[0].identity


def rewritten(folder: Path) -> None:
    file = folder / tensorfile.SINGLE
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))


def other_config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_theta": 1}))


CHANGES: list[Any] = [
    pytest.param(rewritten, r"shards.*mtime_ns", id="the same size, other bytes"),
    pytest.param(other_config, r"config\.rope_theta", id="another config"),
    pytest.param(lambda folder: (folder / tensorfile.SINGLE).unlink(), "cannot be read", id="gone"),
    pytest.param(lambda folder: (folder / tensorfile.INDEX).write_text('{"weight_map": {}}'), "index", id="an index"),
]


def test_files_that_stayed_as_they_were_are_sealed(folder: Path) -> None:
    unchanged.insist(*known(folder))


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_checkpoint_that_changed_while_it_was_read_is_no_fill(
    folder: Path, change: Callable[[Path], None], said: str
) -> None:
    twin, identity = known(folder)
    change(folder)
    with pytest.raises(CheckpointChanged, match=f"changed while it was read.*{said}"):
        unchanged.insist(twin, identity)


def test_files_that_no_index_names_are_refused(folder: Path) -> None:
    """SGLang would load them, and the identity would not know."""
    (folder / "mtp.safetensors").write_bytes((folder / tensorfile.SINGLE).read_bytes())
    with pytest.raises(BadInput, match=r"has mtp.safetensors and no model.safetensors.index.json; add the index"):
        tensorfile.shards(folder)
