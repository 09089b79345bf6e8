"""`ling-engine make-model`: a random checkpoint of the real architecture, with the files that a real one has."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ling_api.errors import BadInput
from ling_engine.reference import config, tokenizer
from ling_engine.reference.model import Ling
from ling_engine.reference.presets import BOS, DTYPE, EOS, PRESETS
from ling_engine.reference.randoms import RandomParameters
from ling_engine.reference.tensorfile import INDEX, SINGLE, header_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from torch import Tensor

_SHARD = 1 << 30  # bytes; a tensor never spans shards
_OURS = ("*.safetensors", INDEX, "config.json", "tokenizer.json", tokenizer.CONFIG_FILE)
_SPELLED = {"bf16": "bfloat16", "fp32": "float32"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `ling-engine make-model`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write; must be empty or absent")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny", help="size (default: tiny)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes (default: 0)")
    parser.add_argument("--dtype", choices=tuple(_SPELLED), help="default: fp32 for tiny and small, else bf16")
    parser.add_argument("--force", action="store_true", help="replace the checkpoint that lies there")


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and prints its content hash as `model.revision` takes it. Raises BadInput."""
    print(f"sha256:{make_model(args.folder, args.preset, args.seed, args.dtype, force=args.force)}")  # noqa: T201
    return 0


def make_model(
    folder: Path, preset: str = "tiny", seed: int = 0, dtype: str | None = None, *, force: bool = False
) -> str:
    """Writes the checkpoint; returns the sha256 of its shards' bytes, 64 hex digits. Raises BadInput."""
    _prepare(folder, force)
    resolved = _SPELLED[dtype] if dtype else DTYPE.get(preset, "bfloat16")
    keys = {**PRESETS[preset], "torch_dtype": resolved}
    try:
        return write(folder, keys, dict(Ling(config.parse(keys)).named_parameters()), seed)
    except OSError as error:
        raise BadInput(f"{folder}: cannot write ({error.strerror})") from None


def write(folder: Path, keys: Mapping[str, object], parameters: Mapping[str, Tensor], seed: int) -> str:
    """Random bytes for these parameters (of any device, `meta` too) and the files around them."""
    digest, numbers = hashlib.sha256(), RandomParameters(seed)
    shards = _split(parameters)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file).open("wb", buffering=0) as out:
            header = header_of({n: (str(parameters[n].dtype)[6:], tuple(parameters[n].shape)) for n in names})
            pieces = itertools.chain.from_iterable(numbers.pieces(n, parameters[n]) for n in names)
            for piece in itertools.chain((memoryview(header),), pieces):
                out.write(piece)
                digest.update(piece)
        places |= dict.fromkeys(names, file)
    texts: dict[str, object] = dict(tokenizer.files(BOS, EOS))
    if len(shards) > 1:
        total = sum(p.nbytes for p in parameters.values())
        texts[INDEX] = {"metadata": {"total_size": total}, "weight_map": places}
    for name, value in (texts | {"config.json": keys}).items():  # config.json last: without it there is no checkpoint
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    return digest.hexdigest()


def _split(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, parameter in parameters.items():
        if filled and filled + parameter.nbytes > _SHARD:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += parameter.nbytes
    return shards


def _prepare(folder: Path, force: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not force:
            raise BadInput(f"{folder}: not empty; give another folder, or --force to replace the checkpoint in it")
        for pattern in _OURS:
            for file in folder.glob(pattern):
                file.unlink()
    except OSError as error:
        raise BadInput(f"{folder}: no folder that can be written ({error.strerror})") from None
