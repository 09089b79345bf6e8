"""Client connections in the launcher: each is placed once, in frames of a size that can be sent, or kept."""

import asyncio
import os
from collections.abc import Callable, Sequence

import pytest
from tests.support.descriptors import open_descriptors

from ling_api import fdpass
from ling_engine import parked


@pytest.fixture
def pipes() -> list[int]:
    ends = [os.pipe() for _ in range(70)]
    fdpass.close_all(one for one, _ in ends)
    return [other for _, other in ends]


def inodes(fds: Sequence[int]) -> list[int]:
    return [os.fstat(fd).st_ino for fd in fds]


def placed_in(frames: list[list[int]], willing: Callable[[], bool]) -> parked.Parked:
    def place(fds: Sequence[int]) -> bool:
        if willing():
            frames.append(inodes(fds))
        return willing()

    return parked.Parked(place)


async def test_all_are_placed_in_small_frames_and_our_copies_closed(pipes: list[int]) -> None:
    frames: list[list[int]] = []
    wanted = inodes(pipes)
    kept = placed_in(frames, lambda: True)
    kept.keep(pipes)
    assert frames == []
    kept.settle()
    assert [len(frame) for frame in frames] == [64, 6]
    assert [*frames[0], *frames[1]] == wanted
    assert not set(pipes) & open_descriptors()
    kept.close()


async def test_what_has_no_place_is_offered_again(pipes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "_AGAIN_S", 0.01)
    frames: list[list[int]] = []
    willing = False
    kept = placed_in(frames, lambda: willing)
    kept.keep(pipes)
    kept.settle()
    assert frames == []
    assert set(pipes) <= open_descriptors()
    willing = True
    async with asyncio.timeout(30):
        while len(frames) < 2:
            await asyncio.sleep(0.005)
    assert not set(pipes) & open_descriptors()


async def test_close_closes_what_is_left(pipes: list[int]) -> None:
    kept = placed_in([], lambda: False)
    kept.keep(pipes)
    kept.close()
    assert not set(pipes) & open_descriptors()
