"""Where SGLang and what it uses keep compiled kernels, as they say themselves. `RESULT`: a file for it, as JSON."""

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import triton
from sglang.kernels.jit.utils.compile.cache import cache_root
from sglang.srt.environ import envs, third_party_cache_defaults
from sglang.srt.plugins import load_plugins
from torch.utils.cpp_extension import get_default_build_root
from tvm_ffi.cpp import extension

from ling_engine.sglang import tuning

PLACES = ("SGLANG_DG_CACHE_DIR", "SGLANG_CUTE_AOT_CACHE_DIR")


def tuned_alone() -> bool:
    """Whether this Triton's tuning goes through our turn."""
    turns = list[Path]()

    @contextlib.contextmanager
    def noted(file: Path) -> Iterator[None]:
        turns.append(file)
        yield

    @triton.autotune([triton.Config({}, num_warps=warps) for warps in (1, 2)], key=[], cache_results=True)
    @triton.jit
    def nothing() -> None:
        pass

    with mock.patch.object(tuning, "turn", noted):
        nothing.check_disk_cache((), [triton.Config({}, pre_hook=print)], lambda: None)  # such a one is never kept
    return [file.parent for file in turns] == [Path(triton.knobs.cache.dir)]


def main(argv: Sequence[str]) -> int:
    told = third_party_cache_defaults()
    told["sglang's own kernels"] = str(cache_root())
    told |= {name: str(getattr(envs, name).get()) for name in PLACES}
    told["tvm-ffi reads TVM_FFI_CACHE_DIR"] = (
        os.environ["TVM_FFI_CACHE_DIR"] if '"TVM_FFI_CACHE_DIR"' in inspect.getsource(extension) else "no"
    )
    told["torch"] = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    load_plugins()
    told["turns of tuning"] = told["TRITON_CACHE_DIR"] if tuned_alone() else "nobody waits"
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
