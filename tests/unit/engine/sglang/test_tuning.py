"""Kernels are tuned by one process at a time, each kernel by itself."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from hack import spine

from ling_engine.sglang import tuning


def kernel() -> None: ...


TUNER = SimpleNamespace(base_fn=kernel)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


class Tuning:
    """Triton's: a kept result, else one's own, which is kept. `slow`: the first waits to be told to go on."""

    def __init__(self, *, slow: bool = False) -> None:
        self.kept: dict[Any, str] = {}
        self.began, self.go_on = threading.Event(), threading.Event()
        if not slow:
            self.go_on.set()

    def __call__(self, _: Any, key: Any, who: str) -> str:
        if key not in self.kept:
            self.began.set()
            self.go_on.wait(60)
            self.kept[key] = who
        return self.kept[key]


def waiting(folder: Path) -> int:
    """How many wait for a file of that folder, as the kernel says."""
    inodes = {str(file.stat().st_ino) for file in folder.iterdir()}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(words[1] == "->" and words[6].rpartition(":")[2] in inodes for words in lines)


def test_who_comes_second_takes_what_the_first_found(folder: Path) -> None:
    tuned = Tuning(slow=True)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(tuning.alone, tuned, TUNER, ("a",), "first")
        assert tuned.began.wait(60)
        second = pool.submit(tuning.alone, tuned, TUNER, ("a",), "second")
        spine.until(lambda: waiting(folder) == 1, "the second to wait", 60)
        tuned.go_on.set()
        assert (first.result(), second.result()) == ("first", "first")


def test_another_key_does_not_wait(folder: Path) -> None:
    tuned = Tuning(slow=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tuning.alone, tuned, TUNER, ("a",), "first")
        assert tuned.began.wait(60)
        assert tuning.alone(Tuning(), TUNER, ("b",), "second") == "second"
        tuned.go_on.set()
        assert first.result() == "first"
    assert len(list(folder.iterdir())) == 2


def test_a_turn_ends_with_a_tuning_that_fails(folder: Path) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of resource")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of resource"):
            tuning.alone(fails, TUNER, ("a",))
    assert folder.exists()


def test_without_a_folder_to_write_in_everybody_tunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "file" / "kernels"))
    assert tuning.alone(Tuning(), TUNER, ("a",), "me") == "me"
