"""Small checkpoints for tests, and a model whose parameters lie in ordinary memory."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch

from ling_engine.reference import config, matching, tokenizer, weights, writer
from ling_engine.reference.bounds import Bounds
from ling_engine.reference.generate import Decoder
from ling_engine.reference.model import Ling
from ling_engine.reference.presets import BOS, EOS, PRESETS
from ling_engine.reference.randoms import RandomParameters
from ling_engine.reference.tensorfile import header_of
from ling_engine.reference.weights import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from ling_engine.reference.config import Config
    from ling_engine.reference.sequence import Sequence

torch.set_num_threads(1)  # tiny products: a second thread only waits

TINY: dict[str, Any] = {
    **PRESETS["tiny"],
    "torch_dtype": "float32",
    "first_k_dense_replace": 2,
    "num_experts": 8,
    "n_group": 4,
}


_written: dict[str, tuple[str, dict[str, bytes]]] = {}  # drawing takes longer than writing


def tiny(folder: Path, seed: int = 0, **keys: Any) -> str:
    """Writes a tiny checkpoint, config.json changed by `keys`; returns its content hash, 64 hex digits."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = {**TINY, **keys}
    known = json.dumps([changed, seed, writer._SHARD])
    if known not in _written:
        parameters = dict(Ling(config.parse(changed)).named_parameters())
        content = writer.write(folder, changed, parameters, RandomParameters(seed), tokenizer.files(BOS, EOS))
        _written[known] = content, {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    content, files = _written[known]
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return content


def loaded(folder: Path) -> tuple[Ling, Config]:
    """The model, filled from the folder by the real loader."""
    c = config.read(folder)
    model = Ling(c)
    model.to_empty(device="cpu")
    weights.load(folder, model, matching.target(c.num_hidden_layers), lambda _done: None)
    return model, c


def greedy(
    model: Ling, sequence: Sequence, prompt: list[int], limit: int, eos: int | None, wanted: Callable[[], bool]
) -> Iterator[int]:
    """The ids that the model gives without a draft."""
    for found in Decoder(model, sequence).generate(prompt, Bounds(limit=limit, eos=eos), wanted):
        yield from found.tokens


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """The single shard's tensors, read in the plainest way."""
    raw = bytearray((folder / "model.safetensors").read_bytes())
    length = int.from_bytes(raw[:8], "little")
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    return {
        name: torch.frombuffer(
            raw[8 + length + e["data_offsets"][0] : 8 + length + e["data_offsets"][1]], dtype=kinds[e["dtype"]]
        ).view(e["shape"])
        for name, e in json.loads(raw[8 : 8 + length]).items()
    }


def save(folder: Path, tensors: Mapping[str, Tensor], file: str = "model.safetensors") -> None:
    """Writes tensors as one shard, in place of what lies there; the time of the file always changes."""
    header = header_of({name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()})
    path = folder / file
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(header + b"".join(bytes_of(t.contiguous()) for t in tensors.values()))
    if path.stat().st_mtime_ns <= before:
        os.utime(path, ns=(before + 1, before + 1))
