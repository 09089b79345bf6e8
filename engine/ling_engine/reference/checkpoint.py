"""`ling-engine make-model`: a checkpoint of the real architecture, with the files that a real one has.

Random by itself; with a draft it is predictable, because a random target and a random draft would never agree.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ling_api.errors import BadInput
from ling_engine.reference import config, tokenizer
from ling_engine.reference.dial import TOKENS, Bench
from ling_engine.reference.model import Ling
from ling_engine.reference.presets import BOS, DTYPE, EOS, PRESETS, dspark_keys
from ling_engine.reference.randoms import RandomParameters
from ling_engine.reference.tensorfile import INDEX
from ling_engine.reference.writer import write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

META = "generation_meta.json"
DRAFTS = ("nextn", "dspark")
_ACCEPT = 0.8
_OURS = ("*.safetensors", INDEX, "config.json", "tokenizer.json", tokenizer.CONFIG_FILE, META)
_SPELLED = {"bf16": "bfloat16", "fp32": "float32"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `ling-engine make-model`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write; must be empty or absent")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny", help="size (default: tiny)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes (default: 0)")
    parser.add_argument("--dtype", choices=tuple(_SPELLED), help="default: fp32 for tiny and small, else bf16")
    parser.add_argument("--force", action="store_true", help="replace the checkpoint that lies there")
    parser.add_argument(
        "--draft", choices=DRAFTS, action="append", default=[], help="with a draft: nextn in it, dspark in DIR/dspark"
    )
    parser.add_argument("--accept", type=float, metavar="P", help="how often a draft is right (default: 0.8)")
    parser.add_argument("--dense", action="store_true", help="no experts: every layer's feed-forward is dense")


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and prints its content hash as `model.revision` takes it. Raises BadInput."""
    dense, drafts = args.dense, tuple(dict.fromkeys(args.draft))
    if args.preset in DTYPE:
        torch.set_num_threads(1)  # small enough that threads would only wait for each other
    content = make_model(
        args.folder,
        args.preset,
        args.seed,
        args.dtype,
        force=args.force,
        drafts=drafts,
        accept=args.accept,
        dense=dense,
    )
    print(f"sha256:{content}")  # noqa: T201
    return 0


def make_model(
    folder: Path,
    preset: str = "tiny",
    seed: int = 0,
    dtype: str | None = None,
    *,
    force: bool = False,
    drafts: tuple[str, ...] = (),
    accept: float | None = None,
    dense: bool = False,
) -> str:
    """Writes the checkpoint; returns the sha256 of its shards' bytes, 64 hex digits. Raises BadInput."""
    if accept is not None and not (drafts and 0 < accept <= 1):
        raise BadInput(f"--accept {accept:g}: must be more than 0 and at most 1, and needs --draft")
    _prepare(folder, force)
    resolved = _SPELLED[dtype] if dtype else DTYPE.get(preset, "bfloat16")
    keys = {**PRESETS[preset], "torch_dtype": resolved, "num_nextn_predict_layers": int("nextn" in drafts)}
    if dense:
        keys["first_k_dense_replace"] = keys["num_hidden_layers"]
    try:
        if drafts:
            return write_predictable(folder, keys, drafts, _ACCEPT if accept is None else accept, seed)
        parameters = dict(Ling(config.parse(keys)).named_parameters())
        return write(folder, keys, parameters, RandomParameters(seed), tokenizer.files(BOS, EOS))
    except OSError as error:
        raise BadInput(f"{folder}: cannot write ({error.strerror})") from None


def write_predictable(folder: Path, keys: Mapping[str, Any], drafts: tuple[str, ...], accept: float, seed: int) -> str:
    """A target and its drafts, right as often as `accept` says; what was measured goes into generation_meta.json."""
    bench = Bench(keys, dspark_keys(keys), seed)
    dial = bench.search(drafts[0], accept)
    bench.fill(dial)
    measured = {name: asdict(bench.measure(name)) for name in drafts}
    if "dspark" in drafts:
        (folder / "dspark").mkdir(exist_ok=True)
        write(folder / "dspark", dspark_keys(keys), dict(bench.dspark.named_parameters()), bench.numbers(dial), {})
    parameters = bench.target_parameters(nextn="nextn" in drafts)
    meta = {"seed": seed, "dial": dial, "accept": accept, "tokens": TOKENS, "measured": measured}
    return write(folder, keys, parameters, bench.numbers(dial), tokenizer.files(BOS, EOS) | {META: meta})


def _prepare(folder: Path, force: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not force:
            raise BadInput(f"{folder}: not empty; give another folder, or --force to replace the checkpoint in it")
        for pattern in _OURS:
            for file in (*folder.glob(pattern), *folder.glob(f"dspark/{pattern}")):
                file.unlink()
    except OSError as error:
        raise BadInput(f"{folder}: no folder that can be written ({error.strerror})") from None
