"""An engine started as a pod would be, with stand-ins for processes: what it is started with, and what is told."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.gpu import pods
from benchmarks.gpu.asking import Answer, Failed
from benchmarks.gpu.parity import Pair
from benchmarks.gpu.report import Report
from benchmarks.gpu.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Room:
    """Slot and lab in one; an engine that offers its kernels makes the agent's archive."""

    folder: Path
    keeping: bool = False
    offers: bool = True
    started: list[tuple[str, tuple[str, ...], dict[str, str]]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    @property
    def kernels(self) -> Path:
        return self.folder / "kernels"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def alive(self, name: str) -> bool:
        return True

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def until(self, look: Callable[[], Any], what: str, seconds: float, *alive: str) -> Any:
        if not (found := look()):
            raise Failed(f"in vain for {what}")
        return found

    def again(self, pod: str, *before: str, **env: str) -> None:
        self.started.append((pod, before, env))
        if self.offers and "LING_CACHE" in env:
            (self.run / "jit" / "default").mkdir(parents=True)
            (self.run / "jit" / "default" / "key").write_bytes(b"kernels")

    def engine(self, pod: str, model: Path, mode: str, *more: str, before: Any = (), **env: str) -> None:
        self.started.append((pod, tuple(before), env))

    def ask(self, prompt: Any, new: int) -> Answer:
        now = time.monotonic()
        return Answer(tokens=(1, 2), times=(now, now), began=now, rounds=1)

    def serves(self, pod: str, seconds: float) -> None:
        self.served.append(pod)

    def server(self, pod: str) -> int:
        return os.getpid()

    def phases(self, pod: str) -> dict[str, float]:
        return {}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.so").touch()
    return Room(folder=tmp_path)


def stage(room: Room) -> Stage:
    args = argparse.Namespace(closest="NEXTN", patience=1)
    report = Report(path=room.folder / "experiment.json", machine={})
    one = Stage(lab=room, report=report, args=args, model=room.folder, shape=room.folder)  # type: ignore[arg-type]
    one.pairs["NEXTN"] = Pair(mode="NEXTN", stock=None, slot=room, pod="ours-nextn")  # type: ignore[arg-type]
    return one


def test_a_new_pods_folder_of_kernels_is_empty_and_its_own(room: Room) -> None:
    one = stage(room)
    pods.new_pod(one)
    (_, _, offering), (pod, before, env) = room.started
    assert offering == env == {"LING_CACHE": str(room.kernels)}
    assert pod == "new-nextn"
    assert before[-3:] == ("--empty", str(room.kernels), "12345")  # options stand before the uid, its command behind
    assert room.stopped == ["ours-nextn", "ours-nextn", "new-nextn"]
    judged = {row["name"]: row["ok"] for row in one.report.rows if row["goal"]}
    assert judged == {
        "NEXTN new pod with the node's kernels to first token": True,
        "NEXTN new pod: kernels compiled anew": True,
    }


def test_without_the_nodes_kernels_there_is_nothing_to_start_with(room: Room) -> None:
    room.offers = False
    with pytest.raises(Failed, match="keep an engine's kernels"):
        pods.new_pod(stage(room))


def test_an_engine_whose_server_was_killed_by_the_part_before_is_waited_for(room: Room) -> None:
    one = stage(room)
    assert one.pair("NEXTN").pod == "ours-nextn"
    assert room.served == ["ours-nextn"]


def test_what_an_agent_still_writes_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / ".new-x").touch()
    assert pods.kept(tmp_path) == []
    (tmp_path / "key").touch()
    assert [file.name for file in pods.kept(tmp_path)] == ["key"]
