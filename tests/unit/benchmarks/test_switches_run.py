"""The comparison of switches with stand-ins for engines: who runs when, what is told, and what survives a failure."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from benchmarks.gpu import switches
from benchmarks.gpu.asking import Answer, Failed, OutOfTime
from benchmarks.gpu.experiment import limit
from benchmarks.gpu.lab import Lab
from benchmarks.gpu.report import Report
from benchmarks.gpu.stage import Stage
from tests.support import flash

if TYPE_CHECKING:
    from pathlib import Path

SLOWER = {"recipe": 0.6, "all": 0.5, "no scheduler overlap": 1.3}  # of the cookbook's step


class Engine:
    """Answers in no time and says how long it took; must not be asked beside another, or while it is stopped."""

    ready_ones: ClassVar[set[str]] = set()
    alive: ClassVar[set[str]] = set()
    asked: ClassVar[list[tuple[str, tuple[int, ...], float]]] = []
    without_fa3: ClassVar[str] = ""  # what of a name is not started on the default attention

    def __init__(self, lab: Lab, name: str, model: Path, mode: str, *, argv: Any = (), env: Any = None) -> None:
        self.lab, self.name, self.port = lab, name, 1
        self._mode, self._step, self._triton = mode, 0.004, "triton" in argv
        for switch, ratio in SLOWER.items():
            if name.endswith(switch.replace(" ", "-")):
                self._step *= ratio
        Engine.alive.add(name)

    def ready(self, seconds: float) -> float:
        if "glue" in self.name:
            raise Failed("it ended before it was ready")
        if self.without_fa3 and self.without_fa3 in self.name and not self._triton:
            raise Failed("Can not import FA3 in sgl_kernel")
        Engine.ready_ones.add(self.name)
        return 1.0

    def ask(self, prompt: Any, new: int, temperature: float = 0) -> Answer:
        Engine.asked.append((self.name, tuple(prompt), temperature))
        assert self.name in Engine.ready_ones, f"{self.name} is not ready and was asked"
        rounds = new // 4 if self._mode == "NEXTN" else new
        times = tuple(self._step / (new / rounds) * at for at in range(new))
        return Answer(tokens=tuple(range(new)), times=times, began=0.0, rounds=rounds)

    def pids(self) -> list[int]:
        return [1_000 + len(self.name)]

    def stop(self) -> None:
        Engine.ready_ones.discard(self.name)
        Engine.alive.discard(self.name)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(switches, "Stock", Engine)
    monkeypatch.setattr(Engine, "ready_ones", set())
    monkeypatch.setattr(Engine, "alive", set())
    monkeypatch.setattr(Engine, "asked", [])
    monkeypatch.setattr(switches.cores, "pin", lambda pids, cpus: None)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(flash.target()))
    args = argparse.Namespace(
        modes="NEXTN,None", tuned="", switches="", beside=5, patience=1, pairs=4, short=64, cpu=False, closest="NEXTN",
        concurrency=1, temperature=0.0,
    )  # fmt: skip
    report = Report(path=tmp_path / "experiment.json", machine={})
    return Stage(lab=Lab(out=tmp_path, work=tmp_path / "work"), report=report, args=args, model=model, shape=model)


def rows(stage: Stage) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in stage.report.rows}


def test_each_switch_is_compared_with_the_cookbooks_step(stage: Stage) -> None:
    switches.switches(stage)
    found = rows(stage)
    assert found["NEXTN recipe: step / cookbook's, 4 rounds"]["value"] == "0.600 [0.600, 0.600]"
    assert found["NEXTN recipe: step / cookbook's, 4 rounds"]["ok"] is True
    assert found["NEXTN all: step / cookbook's, 4 rounds"]["ok"] is True
    assert found["NEXTN no scheduler overlap: step / cookbook's, 4 rounds"]["said"] == "costs"
    assert found["NEXTN recipe: step / cookbook's, 4 rounds"]["step_ms"] == pytest.approx(4 * 0.6, rel=0.05)
    assert "None recipe: share of the bandwidth floor of a plain step" in found
    table = (stage.lab.out / "switches.md").read_text()
    assert "| NEXTN | recipe | 2.400 | 0.600 [0.600, 0.600] | 0.600 | kept |" in table
    assert "| None | bf16 router |" in table
    assert Engine.alive == Engine.ready_ones == set(), "nothing is left"


def test_a_switch_that_does_not_run_is_told_and_the_others_go_on(stage: Stage) -> None:
    switches.switches(stage)
    found = rows(stage)
    assert "it ended" in found["NEXTN metadata glue graph: does not run"]["value"]
    assert not [row for row in stage.report.rows if row["name"].endswith(": failed")]


def test_a_name_that_no_mode_has_is_an_error(stage: Stage) -> None:
    stage.args.switches = "bf16 router,no such switch"
    with pytest.raises(Failed, match="no mode has no such switch"):
        switches.switches(stage)
    assert Engine.alive == set()


def test_only_those_that_are_named_are_started(stage: Stage) -> None:
    stage.args.switches, stage.args.modes = "recipe,bf16 router", "NEXTN"
    switches.switches(stage)
    compared = [row["name"] for row in stage.report.rows if "step / cookbook" in row["name"]]
    assert [name.partition(":")[0] for name in compared] == ["NEXTN recipe", "NEXTN bf16 router"]


def test_as_many_are_asked_at_once_as_an_engine_decodes(stage: Stage) -> None:
    stage.args.switches, stage.args.modes, stage.args.concurrency = "recipe", "NEXTN", 3
    switches.switches(stage)
    prompts = [prompt for name, prompt, _ in Engine.asked if name.endswith("recipe")][1:]  # without that of the start
    assert len(prompts) == 3 * (stage.args.pairs + 1)
    assert len({prompt[:1] for prompt in prompts[:3]}) == 3, "a prefix cache has nothing to share between them"
    assert {len(prompt) for prompt in prompts} == {512}


def test_engines_are_asked_on_cores_of_their_own_and_started_on_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    monkeypatch.setattr(switches.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(switches.cores, "pin", lambda pids, cpus: pinned.append((tuple(pids), tuple(sorted(cpus)))))
    stage.args.switches, stage.args.modes = "recipe", "NEXTN"
    switches.switches(stage)
    assert [len(cpus) for _, cpus in pinned] == [2, 2, 4, 8], "two engines, who asks, and who asks when they have ended"
    assert {cpu for _, cpus in pinned[:3] for cpu in cpus} == set(range(8))
    assert pinned[2][0] == pinned[3][0] == (os.getpid(),)


def test_answers_that_are_drawn_are_not_compared_by_token(stage: Stage) -> None:
    stage.args.switches, stage.args.modes, stage.args.temperature = "recipe", "NEXTN", 1.0
    switches.switches(stage)
    assert {temperature for _, _, temperature in Engine.asked} == {1.0}, "what compiles a sampler does so at the start"
    found = rows(stage)["NEXTN recipe, 1 at a time, temperature 1: step / cookbook's, 4 rounds"]
    assert found["goal"] == ""
    assert not [name for name in rows(stage) if "first token that differs" in name]


def test_every_mode_has_its_first_wave_before_any_has_its_second(stage: Stage) -> None:
    found = switches.waves(stage)
    assert [mode for groups in found[:4] for mode, _ in groups] == ["NEXTN", "None", "NEXTN", "None"]
    assert all(calls[0].name == "cookbook" for groups in found for _, calls in groups)
    assert all(sum(len(calls) for _, calls in groups) <= stage.args.beside for groups in found)
    assert [one.name for one in found[0][0][1][1:3]] == ["recipe", "recipe and hooks"]


def test_what_fits_on_the_gpu_at_once_is_one_wave(stage: Stage) -> None:
    stage.args.switches, stage.args.beside = "recipe,bf16 router", 6
    found = switches.waves(stage)
    assert [[(mode, len(calls)) for mode, calls in groups] for groups in found] == [[("NEXTN", 3), ("None", 3)]]
    switches.switches(stage)
    judged = rows(stage)
    assert judged["NEXTN recipe: step / cookbook's, 4 rounds"]["ok"] is True
    assert judged["None recipe: step / cookbook's, 4 rounds"]["ok"] is True
    assert Engine.alive == Engine.ready_ones == set(), "nothing is left"


@pytest.mark.parametrize(
    ("beside", "seconds", "modes", "not_run"),
    [(4, 170.0, ["NEXTN", "None"], []), (2, 100.0, ["NEXTN"], ["switches, wave 2: not run"])],
    ids=["two of a wave share its time", "a wave that there is no time for"],
)
def test_rounds_end_before_the_time_does_and_are_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, beside: int, seconds: float, modes: list[str], not_run: list[str]
) -> None:
    asked = switches.asked

    def slow(engine: Any, new: int) -> Answer:
        clock[0] += 4.0
        return asked(engine, new)

    clock = [1000.0]
    monkeypatch.setattr(switches, "asked", slow)
    monkeypatch.setattr(switches, "time", argparse.Namespace(monotonic=lambda: clock[0]))
    stage.args.modes, stage.args.switches, stage.args.pairs, stage.args.beside = "NEXTN,None", "recipe", 50, beside
    stage.lab.ends = 1000.0 + seconds
    switches.switches(stage)
    told = [name for name in rows(stage) if "recipe: step / cookbook" in name]
    assert [name.split()[0] for name in told] == modes
    assert all(4 <= int(name.split(", ")[1].split()[0]) < 50 for name in told)
    assert clock[0] < stage.lab.ends
    assert [name for name, row in rows(stage).items() if "not run" in name and row["ok"] is False] == not_run


@pytest.mark.parametrize("without", ["switch", "cookbook"])
def test_where_the_cookbooks_attention_does_not_run_all_are_compared_on_tritons(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setattr(Engine, "without_fa3", without)
    stage.args.modes, stage.args.switches = "NEXTN", "recipe,bf16 router"
    switches.switches(stage)
    found = rows(stage)
    assert found["NEXTN recipe: step / cookbook's, 4 rounds"]["ok"] is True
    assert found["NEXTN bf16 router: step / cookbook's, 4 rounds"]["said"] == "no difference seen"
    assert "FA3" in found["NEXTN cookbook: does not run"]["value"]
    assert "Triton" in found["NEXTN cookbook: does not run as it is"]["value"]
    assert Engine.alive == set()


def test_time_that_ends_while_engines_start_leaves_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(engine: Engine, seconds: float) -> float:
        raise OutOfTime("stopped")

    monkeypatch.setattr(Engine, "ready", late)
    with pytest.raises(OutOfTime):
        switches.switches(stage)
    assert Engine.alive == set()


def test_a_part_whose_time_is_over_ends_with_all_that_it_tolerates(tmp_path: Path) -> None:
    report = Report(path=tmp_path / "experiment.json", machine={})
    went_on = False
    with limit(0.01), report.part("outer"):
        with report.part("inner"):
            time.sleep(60)
        went_on = True
    assert not went_on
    assert [row["name"] for row in report.rows if row["ok"] is False] == ["inner: failed", "outer: failed"]


def test_what_waits_in_a_thread_ends_with_the_part(tmp_path: Path) -> None:
    lab = Lab(out=tmp_path, work=tmp_path / "work", cpu=True)
    lab.ends = time.monotonic()
    with pytest.raises(Failed, match="in vain"):
        lab.until(lambda: False, "what never comes", 600)
