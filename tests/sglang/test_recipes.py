"""The pinned SGLang's own parser and checks take every recipe, and what they make of it is on our allow-list."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("LING_SGLANG_PYTHON", ROOT / ".venv-sglang" / "bin" / "python"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process for all rows: importing SGLang is what takes the time."""
    if not PYTHON.exists():
        pytest.skip(f"needs SGLang's own environment at {PYTHON}")
    folder = tmp_path_factory.mktemp("recipes")
    told = folder / "table.json"
    argv = [str(PYTHON), "-m", "tests.sglang.recipe_table", str(folder), str(told)]
    rooms = ":".join(str(ROOT / room) for room in ("", "engine", "api"))
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": rooms}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def test_every_switch_of_the_benchmark_is_one_of_sglangs(table: dict[str, Any]) -> None:
    assert {name: said for name, said in table["trials"].items() if said} == {}
    assert {"NEXTN cookbook", "NEXTN recipe", "NEXTN all", "NEXTN bf16 router", "None all-reduce in one stage"} <= set(
        table["trials"]
    )


def test_every_recipe_is_accepted_and_allowed(table: dict[str, Any]) -> None:
    rows = {name: row for name, row in table.items() if name.startswith(("hopper", "blackwell"))}
    assert len(rows) == 36
    assert {name: row["error"] for name, row in rows.items() if "error" in row} == {}


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ("hopper None bf16 tp1", {"attention_backend": "fa3", "speculative_algorithm": None, "page_size": 1}),
        ("hopper NEXTN bf16 tp4", {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 6}),
        ("hopper DSPARK bf16 tp4", {"speculative_num_draft_tokens": 9, "linear_replayssm_cache_len": 32}),
        ("hopper DSPARK fp8 tp4", {"ep_size": 4, "mamba_ssm_dtype": "float32", "page_size": 16}),
        ("blackwell NEXTN bf16 tp4", {"attention_backend": "trtllm_mla", "page_size": 64}),
        ("blackwell DSPARK bf16 tp1", {"attention_backend": "trtllm_mla", "disable_overlap_schedule": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_recipe_resolves_to(table: dict[str, Any], row: str, wanted: dict[str, Any]) -> None:
    assert {name: table[row][name] for name in wanted} == wanted
    assert table[row]["load_format"] == "private"


def test_the_sizes_are_ours(table: dict[str, Any]) -> None:
    """SGLang resolves none of them to something else."""
    for name, row in table.items():
        if name.startswith(("hopper", "blackwell")):
            argv = row["argv"]
            for flag in ("max_total_tokens", "max_mamba_cache_size", "mem_fraction_static"):
                given = argv[argv.index("--" + flag.replace("_", "-")) + 1]
                assert float(row[flag]) == float(given), (name, flag)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("unknown flag", "does not know one of its flags"),
        ("trtllm_mla on hopper", "only supported on Blackwell"),
        ("sglang's own cache with speculation", "SGLang refuses its settings"),
        ("a flag that moves weights", "cpu_offload_gb is 4"),
    ],
)
def test_what_is_refused(table: dict[str, Any], row: str, sentence: str) -> None:
    assert sentence in table[row]["error"]


def test_nothing_of_it_touches_a_gpu(table: dict[str, Any]) -> None:
    assert table["cuda initialised"] is False
