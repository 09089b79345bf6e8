"""What SGLang's modules hold after their import, as JSON: in a zygote, whose questions about the GPU are answered from
facts, or in a process that asks the driver itself.

    python -m tests.gpu.constants zygote|driver FILE

In SGLang's environment, with `api` and `engine` on PYTHONPATH, from the repository's root. Plain values of modules, and
what Triton chooses among.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "sgl_kernel", "flashinfer", "triton")
PLAIN = (bool, int, float, str, bytes, type(None))
DEEP = 4  # containers in containers


def main(who: str, file: Path) -> None:
    from ling_engine.sglang import device, guards, preload

    facts = device.facts()
    if facts is None:
        raise SystemExit("no GPU")
    if who == "zygote":
        guards.set_environment(facts)
        guards.arm(facts)
    preload.modules("BailingMoeV3ForCausalLM")
    if who == "zygote" and device.initialized():
        raise SystemExit("the import has called the driver")
    file.write_text(json.dumps(held()))


def held() -> dict[str, str]:
    """By module and name."""
    modules = {name: one for name, one in sorted(sys.modules.items()) if name.split(".")[0] in PACKAGES}
    named = ((f"{module}.{name}", value) for module, one in modules.items() for name, value in list(vars(one).items()))
    return {name: found for name, value in named if "__" not in name and (found := plain(value))}


def plain(value: Any, depth: int = DEEP) -> str:
    """A plain value spelled out, a function or class by its name, "" for any other; of kernels that Triton tunes, what
    it chooses among."""
    while type(value).__name__ == "Heuristics":
        value = value.fn
    if type(value).__name__ == "Autotuner":
        return repr([str(one) for one in value.configs])
    if isinstance(value, PLAIN) or type(value).__name__ == "dtype":
        return repr(value)
    if isinstance(value, type | types.FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if not depth or not isinstance(value, tuple | list | set | frozenset | dict):
        return ""
    parts = [plain(one, depth - 1) for one in value]
    if isinstance(value, dict):
        parts += [plain(one, depth - 1) for one in value.values()]
    if not all(parts):
        return ""
    return f"{type(value).__name__}({', '.join(sorted(parts) if isinstance(value, set | frozenset) else parts)})"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
