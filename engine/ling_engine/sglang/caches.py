"""Where kernels that are compiled at run time go. Pure: a folder in, environment variables out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def variables(folder: Path) -> dict[str, str]:
    """One path in every container, since some of them hold absolute paths.

    SGLANG_CACHE_DIR moves most caches of SGLang and of what it uses (`environ.third_party_cache_defaults`), but neither
    that of its own C++ kernels nor tvm-ffi's and torch's: those stay below $HOME, where every new pod has none, and its
    first graph waits half a minute for a compiler.
    """
    return {
        "SGLANG_CACHE_DIR": str(folder),
        "SGLANG_JIT_CACHE_DIR": str(folder / "jit"),
        "TVM_FFI_CACHE_DIR": str(folder / "tvm-ffi"),
        "TORCH_EXTENSIONS_DIR": str(folder / "torch-extensions"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }
