"""Where SGLang and what it uses keep compiled kernels, as they say themselves. `RESULT`: a file for it, as JSON."""

import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang.kernels.jit.utils.compile.cache import cache_root
from sglang.srt.environ import envs, third_party_cache_defaults
from torch.utils.cpp_extension import get_default_build_root
from tvm_ffi.cpp import extension

PLACES = ("SGLANG_DG_CACHE_DIR", "SGLANG_CUTE_AOT_CACHE_DIR")


def main(argv: Sequence[str]) -> int:
    told = third_party_cache_defaults()
    told["sglang's own kernels"] = str(cache_root())
    told |= {name: str(getattr(envs, name).get()) for name in PLACES}
    told["tvm-ffi reads TVM_FFI_CACHE_DIR"] = (
        os.environ["TVM_FFI_CACHE_DIR"] if '"TVM_FFI_CACHE_DIR"' in inspect.getsource(extension) else "no"
    )
    told["torch"] = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    Path(argv[0]).write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
