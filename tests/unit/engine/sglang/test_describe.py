"""What describes a model before SGLang is imported: light, and the first to refuse what the environment asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support import flash
from tests.support.processes import PYTHONPATH

from ling_api.errors import BadInput
from ling_engine.decoding import Decoding
from ling_engine.runtime import PREFERRED, ModelSettings
from ling_engine.sglang import describe

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"torch", "numpy", "triton", "sglang"}


@pytest.mark.parametrize("module", ["describe", "device", "runtime"])
def test_facts_and_notices_come_before_torch(module: str) -> None:
    """A process of its own asks the GPU for its facts at every start, and a zygote names its kernels before it imports:
    torch would take three seconds of each."""
    code = f"import sys, ling_engine.sglang.{module}; print(*sys.modules)"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LING_FEW_ROWS", "expert", "no part 'expert'; write some of scores,"),
        ("LING_ACCEPT_IN_GRAPH", "yes", "write 1, or leave it empty"),
        ("LING_DRAFT_FP8", "head", "no part 'head'; leave it out"),
    ],
)
def test_what_a_hook_cannot_mean_is_refused_before_sglang_is_asked(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(flash.target()))
    settings = ModelSettings(
        path=tmp_path, revision="", context_length=4096, max_queue=1, served_name="m", decoding=Decoding(),
        concurrency=1, weight_cache=PREFERRED,
    )  # fmt: skip
    with pytest.raises(BadInput, match=f"{name}.*{sentence}"):
        describe.describe(settings, describe.Device(capability=(9, 0)), {name: value})
