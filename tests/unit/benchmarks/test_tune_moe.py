"""Tuning of the MoE kernel, with a stand-in for the kernel: what is timed, for how long, and what is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from benchmarks import moe_plan, tune_moe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.moe_plan import Case, Config

USUAL: Config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
GPU = "NVIDIA H200"


class Clock:
    """Time that stand-ins move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tune_moe, "time", clock)
    return clock


class Standin:
    """Faster with wider tiles; refuses five stages; one configuration computes something else."""

    asked: list[tuple[str, int, str]]

    def __init__(self, case: Case, asked: list[tuple[str, int, str]], pause: Callable[[], None]) -> None:
        self._case, self.asked, self._pause = case, asked, pause

    def default(self, rows: int) -> Config:
        return USUAL

    def time(self, rows: int, config: Config) -> float | None:
        self.asked.append((self._case.name, rows, moe_plan.key(config)))
        self._pause()
        if config.get("num_stages") == 5:
            raise RuntimeError("out of resource: shared memory")
        if config["BLOCK_SIZE_N"] == 128 and config["BLOCK_SIZE_K"] == 256:
            return None
        return 100.0 - (0.0 if config is USUAL else config["BLOCK_SIZE_N"] / 10)


def run(
    out: Path, clock: Clock, cases: str, rows: list[int], *, seconds: float = 30.0, pause: float = 0.0
) -> list[tuple[str, int, str]]:
    asked: list[tuple[str, int, str]] = []

    def passes() -> None:
        clock.now += pause

    tune_moe.tune(
        moe_plan.cases(cases), rows, out, clock.now + seconds, lambda case: Standin(case, asked, passes),
        lambda case: out / "configs" / "triton_3_8_0" / case.layer.table(GPU),
    )  # fmt: skip
    return asked


def test_the_fastest_that_is_right_is_written_under_the_name_that_sglang_looks_for(
    tmp_path: Path, clock: Clock
) -> None:
    run(tmp_path, clock, "513x384", [1, 2048])
    (file,) = (tmp_path / "configs" / "triton_3_8_0").iterdir()
    assert file.name == "E=513,N=384,device_name=NVIDIA_H200.json"
    table = json.loads(file.read_text())
    assert {"1", "2048"} < table.keys()
    for config in (table["1"], table["2048"]):
        assert config["BLOCK_SIZE_N"] == 128
        assert config["BLOCK_SIZE_K"] != 256
        assert config["num_stages"] != 5


def test_a_run_goes_on_where_the_last_one_was(tmp_path: Path, clock: Clock) -> None:
    first = run(tmp_path, clock, "513x384", [1])
    assert first[0][2] == moe_plan.key(USUAL), "the default is what all are compared with"
    assert len(first) == len(set(first)) == len(moe_plan.configurations(moe_plan.cases("513x384")[0], 1)) + 1
    assert run(tmp_path, clock, "513x384", [1]) == []
    more = run(tmp_path, clock, "513x384", [1, 6])
    assert {rows for _, rows, _ in more} == {6}
    (file,) = (tmp_path / "configs" / "triton_3_8_0").iterdir()
    assert {"1", "6"} < json.loads(file.read_text()).keys()


def test_time_is_shared_out_and_every_number_of_rows_gets_some(tmp_path: Path, clock: Clock) -> None:
    asked = run(tmp_path, clock, "513x384,513x768", [1, 6], seconds=1.2, pause=0.02)
    by_job = {(case, rows): 0 for case, rows, _ in asked}
    for case, rows, _ in asked:
        by_job[case, rows] += 1
    assert by_job.keys() == {("513x384", 1), ("513x384", 6), ("513x768", 1), ("513x768", 6)}
    assert all(2 <= count <= 30 for count in by_job.values()), by_job
    assert len(list((tmp_path / "configs" / "triton_3_8_0").iterdir())) == 2


def test_without_time_nothing_is_asked_and_nothing_is_written(tmp_path: Path, clock: Clock) -> None:
    assert run(tmp_path, clock, "513x384", [1], seconds=0.0) == []
    assert list(tmp_path.iterdir()) == []


def test_a_lost_device_ends_the_run() -> None:
    def lost() -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        tune_moe.attempt(lost)


def test_the_default_stays_where_nothing_is_worth_more() -> None:
    near = {**USUAL, "num_warps": 4, "num_stages": 4}
    timed = {"1": {moe_plan.key(USUAL): 100.0, moe_plan.key(near): 99.5}, "6": {moe_plan.key(USUAL): 100.0}}
    assert moe_plan.table(timed, {"1": USUAL, "6": USUAL}) == {"1": USUAL}


@pytest.mark.parametrize("prompt", [20, 100, 513, 700, 1100, 5000])
def test_prompts_keep_sglangs_default_beside_rows_of_decoding(tmp_path: Path, clock: Clock, prompt: int) -> None:
    run(tmp_path, clock, "513x384", [1, 6, 9])
    (file,) = (tmp_path / "configs" / "triton_3_8_0").iterdir()
    table = {int(rows): config for rows, config in json.loads(file.read_text()).items()}
    assert table[min(table, key=lambda one: abs(one - prompt))] == USUAL, "as SGLang chooses"
    assert table[min(table, key=lambda one: abs(one - 8))] != USUAL


@pytest.mark.parametrize(
    ("text", "said"),
    [("513", "write a case as"), ("513x768:int4", "write a case as"), ("513x192:fp8", "no whole number of blocks")],
)
def test_a_case_that_cannot_be_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        moe_plan.cases(text)


@pytest.mark.parametrize("rows", moe_plan.ROWS)
def test_configurations_fit_the_kernel(rows: int) -> None:
    for case in moe_plan.cases(moe_plan.CASES):
        found = moe_plan.configurations(case, rows)
        assert 6 <= len(found) == len({moe_plan.key(one) for one in found})
        if case.layer.quantization:
            assert {one["BLOCK_SIZE_K"] for one in found} == {128}, "a block of scales is 128 wide"


def test_the_bytes_of_a_call() -> None:
    (case,) = moe_plan.cases("513x768")
    assert moe_plan.weight_bytes(case, 1, chosen=9, hidden=2560) == 9 * 3 * 768 * 2560 * 2
    assert moe_plan.weight_bytes(case, 2048, chosen=9, hidden=2560) == 513 * 3 * 768 * 2560 * 2
