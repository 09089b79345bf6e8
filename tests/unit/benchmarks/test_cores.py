"""Who gets which processors in a comparison."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from benchmarks.gpu import cores

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("siblings", "found"),
    [
        pytest.param({}, [0, 1, 2, 3], id="nothing told"),
        pytest.param({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, [0, 1, 2, 3], id="pairs"),
        pytest.param({0: "0,2", 2: "0,2", 1: "1,3", 3: "1,3"}, [0, 2, 1, 3], id="halves of a core far apart"),
    ],
)
def test_processors_that_share_a_core_come_together(tmp_path: Path, siblings: dict[int, str], found: list[int]) -> None:
    for cpu, told in siblings.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "core_cpus_list").write_text(told + "\n")
    assert cores.order([3, 1, 0, 2], tmp_path) == found


def test_every_rank_has_one_and_http_another() -> None:
    assert [len(one) for one in cores.shares(3, range(16), ranks=2)] == [4] * 4
    assert cores.shares(4, range(16), ranks=2) == []


@pytest.mark.parametrize(
    ("engines", "cpus", "sizes"),
    [
        pytest.param(7, 16, [2] * 8, id="just enough"),
        pytest.param(3, 16, [4] * 4, id="more than enough"),
        pytest.param(4, 16, [2] * 4 + [8], id="whole cores alone"),
        pytest.param(8, 16, [], id="too few"),
        pytest.param(1, 2, [], id="two processors"),
    ],
)
def test_every_engine_gets_as_many_and_who_asks_the_rest(engines: int, cpus: int, sizes: list[int]) -> None:
    found = cores.shares(engines, range(cpus))
    assert [len(one) for one in found] == sizes
    assert [cpu for one in found for cpu in one] == list(range(cpus if sizes else 0))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_all_threads_of_a_process_are_pinned() -> None:
    before, stop, started, seen = os.sched_getaffinity(0), threading.Event(), threading.Event(), set[int]()

    def other() -> None:
        started.set()
        stop.wait(60)
        seen.update(os.sched_getaffinity(0))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert started.wait(60)
        cores.pin([os.getpid()], [min(before)])
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        stop.set()
        thread.join()
        cores.pin([os.getpid()], sorted(before))
    assert seen == {min(before)}
