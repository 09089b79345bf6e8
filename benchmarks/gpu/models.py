"""Checkpoints for measurements on a GPU, made in a minute: Ling-3.0-flash's shape, cut, predictable, with both drafts.

`python -m benchmarks.gpu.models FOLDER --layers 12 --experts 64 [--accept 0.8 | --dial D]`. The drafts are right as
often as `--accept` says: the dial is searched with the reference engine on the GPU, and what was found goes into
generation_meta.json. `--shape` writes only what a start with dummy weights needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("api", "engine", "")]

import torch  # noqa: E402
from tests.support import flash  # noqa: E402

from ling_engine.reference import config, tokenizer  # noqa: E402
from ling_engine.reference.checkpoint import META  # noqa: E402
from ling_engine.reference.dial import Bench, Measured  # noqa: E402
from ling_engine.reference.tensorfile import INDEX, SINGLE  # noqa: E402
from ling_engine.reference.writer import write  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from ling_engine.reference.predictable import PredictableParameters

SEED = 7
_BOS, _EOS, _MASK = 256, 257, 258
_WRITERS = ("o_proj.weight", "dense.weight", "down_proj.weight")
_TURNS = 7
_MOST = 256.0  # of the dial
TINY = {
    "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 512, "n_group": 8,
    "moe_intermediate_size": 128, "moe_shared_expert_intermediate_size": 128, "num_experts_per_tok": 4,
    "vocab_size": 512, "max_position_embeddings": 4096,
}  # fmt: skip


def keys_of(
    layers: int, experts: int, *, tiny: bool = False, dtype: str = "bfloat16", clamps: bool = False
) -> dict[str, Any]:
    """config.json of the target. Two layers: one KDA, one MLA, both with experts. `clamps`: of experts, as
    Ling-3.0-flash has them from the third layer on; SGLang's activation is another kernel then."""
    flat = {"layer_group_size": 2, "first_k_dense_replace": 0} if layers == 2 else {}
    none = {} if clamps else {"expert_swiglu_limit_list": None, "share_expert_swiglu_limit_list": None}
    own = {"bos_token_id": _BOS, "eos_token_id": _EOS, "pad_token_id": _EOS, "torch_dtype": dtype}
    return flash.target(layers, experts, **{**(TINY if tiny else {}), **flat, **none, **own})


def draft_keys(target: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of the DSPARK draft."""
    layers = target["num_hidden_layers"]
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    taps = sorted({(one + 1) * layers // 6 for one in range(5)})
    borrowed = {name: target[name] for name in (*names, "torch_dtype", "max_position_embeddings")}
    return flash.draft(
        layers, target_layer_ids=taps, mask_token_id=_MASK, rope_scaling=None, enable_confidence_head=False, **borrowed
    )


def fill(module: nn.Module, numbers: PredictableParameters, device: str, prefix: str = "") -> None:
    """Storage on the device, and values; `prefix` stands before the names in a checkpoint."""
    module.to_empty(device=device)
    for name, parameter in module.named_parameters():
        raw = bytearray().join(numbers.pieces(prefix + name, parameter.to("meta")))
        parameter.copy_(torch.frombuffer(raw, dtype=parameter.dtype).view(parameter.shape))


class DeviceBench(Bench):
    """The bench of the dial, its modules on a device; the dial is turned in place."""

    def __init__(self, keys: Mapping[str, Any], seed: int, device: str) -> None:
        with torch.device(device):  # for constants; parameters are on meta
            super().__init__(keys, draft_keys(keys), seed)
        self._modules = (self.target, self.mtp, self.dspark)
        self._device, self._dial = device, 1.0
        numbers = self.numbers(1.0)
        for module, prefix in zip(self._modules, ("", self.prefix, ""), strict=True):
            fill(module, numbers, device, prefix)

    def fill(self, dial: float) -> None:
        for module in self._modules:
            for name, parameter in module.named_parameters():
                if name.endswith(_WRITERS):
                    parameter.mul_(dial / self._dial)
        self._dial = dial

    def measure(self, name: str) -> Measured:
        with torch.device(self._device):
            return super().measure(name)


def search(bench: DeviceBench, wanted: float) -> tuple[float, dict[float, Measured]]:
    """The dial at which NEXTN's drafts are right as often as wanted, on a scale of powers."""
    low, high, tried = 0.5, _MOST, dict[float, Measured]()
    for _ in range(_TURNS):
        dial = round((low * high) ** 0.5, 3)
        bench.fill(dial)
        tried[dial] = bench.measure("nextn")
        print(f"dial {dial:g}: {tried[dial]}", flush=True)
        low, high = (dial, high) if tried[dial].acceptance > wanted else (low, dial)
    return min(tried, key=lambda one: abs(tried[one].acceptance - wanted)), tried


def make(folder: Path, keys: dict[str, Any], accept: float, dial: float | None) -> None:
    """Target with its NEXTN layer, DSPARK draft in `dspark`; config.json last."""
    began = time.monotonic()
    measured: dict[str, Any] = {}
    if dial is None:
        with torch.inference_mode():
            bench = DeviceBench(keys, SEED, "cuda" if torch.cuda.is_available() else "cpu")
            print(f"filled in {time.monotonic() - began:.1f} s", flush=True)
            dial, tried = search(bench, accept)
        measured = {"nextn": {one: asdict(found) for one, found in tried.items()}}
        del bench
        torch.cuda.empty_cache()
    named = Bench(keys, draft_keys(keys), SEED)  # on meta: names and shapes
    numbers = named.numbers(dial)
    (folder / "dspark").mkdir(parents=True, exist_ok=True)
    files = tokenizer.files(_BOS, _EOS)
    write(folder / "dspark", draft_keys(keys), dict(named.dspark.named_parameters()), numbers, {})
    meta = {"seed": SEED, "dial": dial, "accept": accept, "measured": measured, "made_s": time.monotonic() - began}
    write(folder, keys, named.target_parameters(nextn=True), numbers, files | {META: meta})
    print(f"{folder}: dial {dial:g}, {time.monotonic() - began:.1f} s", flush=True)


def shape(folder: Path, keys: dict[str, Any]) -> None:
    """config.json and tokenizer alone."""
    config.parse(keys)
    (folder / "dspark").mkdir(parents=True, exist_ok=True)
    (folder / "dspark" / "config.json").write_text(json.dumps(draft_keys(keys)))
    for name, value in {**tokenizer.files(_BOS, _EOS), "config.json": keys}.items():
        (folder / name).write_text(json.dumps(value))


def zeroed(folder: Path, into: Path, name: str) -> None:
    """The same checkpoint with one tensor of zeros: its shard is copied, the others are linked."""
    index = folder / INDEX
    shard = json.loads(index.read_text())["weight_map"][name] if index.exists() else SINGLE
    into.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.name != shard and not (into / file.name).exists():
            (into / file.name).symlink_to(file)
    data = bytearray((folder / shard).read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    data[8 + length + begin : 8 + length + end] = bytes(end - begin)
    (into / shard).write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--accept", type=float, default=0.85)
    parser.add_argument("--dial", type=float)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--shape", action="store_true")
    parser.add_argument("--clamps", action="store_true", help="of experts, as Ling-3.0-flash has them")
    args = parser.parse_args()
    keys = keys_of(args.layers, args.experts, tiny=args.tiny, dtype=args.dtype, clamps=args.clamps)
    if args.shape:
        shape(args.folder, keys)
    else:
        make(args.folder, keys, args.accept, args.dial)


if __name__ == "__main__":
    main()
