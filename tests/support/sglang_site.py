"""What makes SGLang run on a CPU in a test, as environment variables; works in any environment.

SGLang finds platforms and plug-ins by the entry points of installed distributions: a folder on the path with the
metadata of one is enough, nothing is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.processes import PYTHONPATH, ROOT

_ENTRY_POINTS = """\
[sglang.srt.platforms]
ling_cpu = tests.support.sglang_site:platform
[sglang.srt.plugins]
ling_cpu = tests.support.sglang_site:install
"""
PYTHON = ROOT / ".venv-sglang/bin/python"
_PATIENCE = "LING_TEST_PATIENCE"  # a file with the seconds that a server may be silent, while there is one


def environment(folder: Path) -> dict[str, str]:
    """Writes the metadata into the folder; the variables that a process with SGLang on a CPU needs."""
    info = folder / "ling_cpu-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ling-cpu\nVersion: 0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return {
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT), PYTHONPATH)),
        "SGLANG_PLATFORM": "ling_cpu",
        "SGLANG_MAMBA_CONV_DTYPE": "float32",  # the interpreter has no bfloat16
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        "TRITON_INTERPRET": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        _PATIENCE: str(patience(folder)),
    }


def patience(folder: Path) -> Path:
    """The file that shortens the patience with servers of this environment: an interpreter's own is ten minutes."""
    return folder / "patience"


def platform() -> str:
    """The entry point of SGLang's platform discovery."""
    return "tests.support.sglang_platform:Cpu"


def install() -> None:
    """The entry point that SGLang calls in every process of a server."""
    import torch
    from tests.support import sglang_interpreter

    sglang_interpreter.install()
    _shorten_patience()
    torch.cuda.synchronize = lambda *_args: None  # sharing embedding and head ends with one


def _shorten_patience() -> None:
    from ling_engine.metrics import ServerMetrics

    file, usual = Path(os.environ[_PATIENCE]), ServerMetrics._patience

    def shortened(self: ServerMetrics) -> float:
        return float(file.read_text()) if file.exists() else usual(self)

    ServerMetrics._patience = shortened  # type: ignore[method-assign]
