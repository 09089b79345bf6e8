"""One process that has imported SGLang, for all tests here; a checkpoint of ours that its kernels accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support import sglang_lane

from ling_engine.reference import tokenizer
from ling_engine.reference.dial import Bench
from ling_engine.reference.presets import BOS, EOS, PRESETS, dspark_keys
from ling_engine.reference.writer import write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIAL = 2.0  # about two of three guesses right; searched for, it would take longer than all that is done with it


@pytest.fixture(scope="session", autouse=True)
def _sglang() -> None:
    """Skips all tests here where SGLang is not installed, and says how it is."""
    sglang_lane.require()


@pytest.fixture(scope="session")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sglang_lane.Lane]:
    lane = sglang_lane.Lane(tmp_path_factory.mktemp("lane"))
    yield lane
    lane.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make-model --preset mini --draft nextn --draft dspark` writes, in float32."""
    folder: Path = tmp_path_factory.mktemp("model")
    keys = {**PRESETS["mini"], "torch_dtype": "float32", "num_nextn_predict_layers": 1}
    draft = dspark_keys(keys)
    bench = Bench(keys, draft, seed=0)
    (folder / "dspark").mkdir()
    write(folder / "dspark", draft, dict(bench.dspark.named_parameters()), bench.numbers(DIAL), {})
    write(folder, keys, bench.target_parameters(nextn=True), bench.numbers(DIAL), tokenizer.files(BOS, EOS))
    return folder
