"""Run by SGLang's own Python: every recipe through SGLang's parser, resolution and checks, on a machine without a GPU.

The GPU is stated with SGLang's test seam `override_platform`. Writes one JSON object: row -> what it resolved to, or
the error, ours included. `python -m tests.sglang.recipe_table FOLDER OUT` (a folder to write config.json in).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("SGLANG_RAGGED_VERIFY_MODE", "static")

from benchmarks.gpu import switch_table
from sglang.srt import runtime_context
from sglang.srt.environ import envs
from tests.support import flash

from ling_api.errors import BadInput
from ling_engine.runtime import REQUIRED
from ling_engine.sglang import allowed, arguments, resolution, wishes
from ling_engine.sglang.families import Family
from ling_engine.sglang.shape import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_FACTS: dict[Family, dict[str, Any]] = {
    Family.HOPPER: {
        "is_cuda": True, "is_sm90": True, "is_hopper_with_cuda_12_3": True, "has_flashinfer": True, "device_sm": 90,
        "device_capability": (9, 0), "is_sm100": False, "is_blackwell": False,
    },
    Family.BLACKWELL: {
        "is_cuda": True, "is_sm90": False, "is_sm100": True, "is_sm100_or_sm110": True, "is_blackwell": True,
        "is_hopper_with_cuda_12_3": False, "has_flashinfer": True, "device_sm": 100, "device_capability": (10, 0),
    },
}  # fmt: skip
_TOLD = (
    "attention_backend", "speculative_algorithm", "speculative_num_draft_tokens", "page_size", "load_format", "ep_size",
    "disable_overlap_schedule", "linear_replayssm_cache_len", "max_mamba_cache_size", "max_total_tokens",
    "mem_fraction_static", "disable_shared_experts_fusion", "mamba_ssm_dtype",
)  # fmt: skip
_ASKS_THE_GPU = "Found no NVIDIA driver"  # how far a choice that only the GPU can allow gets here
_DECODING: dict[str, dict[str, Any]] = {"None": {}, "NEXTN": {"num_steps": 5, "num_draft_tokens": 6}, "DSPARK": {}}


def write(folder: Path) -> dict[str, Path]:
    """config.json of the public checkpoint in bf16 and fp8, each with its draft; no weights."""
    folders = {"": folder / "bf16", "fp8": folder / "fp8"}
    for quantization, where in folders.items():
        (where / "dspark").mkdir(parents=True, exist_ok=True)
        keys = flash.target(**({"quantization_config": flash.FP8} if quantization else {}))
        (where / "config.json").write_text(json.dumps(keys))
        (where / "dspark" / "config.json").write_text(json.dumps(flash.draft()))
    return folders


def rows(folders: dict[str, Path]) -> Iterator[tuple[str, wishes.Wishes, Family, str]]:
    for family in _FACTS:
        for algorithm, decoding in _DECODING.items():
            for quantization, folder in folders.items():
                for tp in (1, 4):
                    one = wishes.Wishes(
                        path=str(folder), served_name="ling", context_length=16384, algorithm=algorithm, tp=tp,
                        draft=str(folder / "dspark") if algorithm == "DSPARK" else "", **decoding,
                    )  # fmt: skip
                    name = f"{family} {algorithm} {quantization or 'bf16'} tp{tp}"
                    yield name, one, family, quantization
                    if (tp, quantization) == (4, ""):
                        yield f"{name} router", replace(one, router_dtype="bf16"), family, quantization
                        yield f"{name} two tokens", replace(one, concurrency=1), family, quantization


def resolved(argv: list[str], family: Family, env: dict[str, str]) -> dict[str, Any]:
    """Raises BadInput."""
    facts = {
        name: value
        for name, value in _FACTS[family].items()
        if name in runtime_context._PLATFORM_PROBES or name in runtime_context._PLATFORM_VALUES
    }
    with runtime_context.override_platform(**facts), contextlib.redirect_stderr(sys.stdout):
        found = resolution.resolve([*argv, "--skip-tokenizer-init", "--device", "cuda"])
    allowed.judge(found.resolved, found.defaults, env, REQUIRED)
    return {name: found.resolved[name] for name in _TOLD}


def trials(folder: Path, shape: Any, algorithm: str, decoding: dict[str, Any]) -> list[switch_table.Call]:
    """How the benchmark of SGLang's switches calls it, on one rank and on two."""
    found = {}
    for tp in (1, 2):
        one = wishes.Wishes(
            path=str(folder), served_name="ling", context_length=4096, algorithm=algorithm, tp=tp, concurrency=1,
            draft=str(folder / "dspark") if algorithm == "DSPARK" else "", **decoding,
        )  # fmt: skip
        called = arguments.command_line(one, shape, Family.HOPPER)
        found |= {call.name: call for call in switch_table.calls(algorithm, tp, called.argv, called.env)}
    return list(found.values())


def tried(call: switch_table.Call) -> str:
    """What keeps SGLang from being called so; "" = nothing."""
    unknown = [name for name in call.env if name.startswith("SGLANG_") and not hasattr(envs, name)]
    facts = {
        name: value
        for name, value in _FACTS[Family.HOPPER].items()
        if name in runtime_context._PLATFORM_PROBES or name in runtime_context._PLATFORM_VALUES
    }
    with runtime_context.override_platform(**facts), contextlib.redirect_stderr(sys.stdout):
        try:
            resolution.resolve([*call.argv, "--skip-tokenizer-init"])
        except BadInput as error:
            if _ASKS_THE_GPU not in str(error):
                return str(error)
    return f"unknown variables: {unknown}" if unknown else ""


def main() -> None:
    folders = write(Path(sys.argv[1]))
    shapes = {name: shape_of(flash.target(**({"quantization_config": flash.FP8} if name else {})), flash.draft())
              for name in folders}  # fmt: skip
    found: dict[str, Any] = {}
    for name, one, family, quantization in rows(folders):
        called = arguments.command_line(one, shapes[quantization], family)
        try:
            found[name] = {"argv": called.argv, **resolved(list(called.argv), family, called.env)}
        except BadInput as error:
            found[name] = {"argv": called.argv, "error": str(error)}
    plain = wishes.Wishes(path=str(folders[""]), served_name="ling", context_length=16384)
    called = arguments.command_line(plain, shapes[""], Family.HOPPER)
    for name, more in (
        ("unknown flag", ["--speculative-num-stepz", "3"]),
        ("trtllm_mla on hopper", ["--attention-backend", "trtllm_mla"]),
        ("sglang's own cache with speculation", ["--weight-cache-mode", "client", "--speculative-algorithm", "NEXTN"]),
        ("a flag that moves weights", ["--cpu-offload-gb", "4"]),
    ):
        try:
            found[name] = resolved([*called.argv, *more], Family.HOPPER, called.env)
        except BadInput as error:
            found[name] = {"error": str(error)}
    found["trials"] = {
        f"{algorithm} {call.name}": tried(call)
        for algorithm, decoding in _DECODING.items()
        for call in trials(folders[""], shapes[""], algorithm, decoding)
    }
    import torch

    found["cuda initialised"] = torch.cuda.is_initialized()
    Path(sys.argv[2]).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
