"""Pulses of children that are yet to be forked: who takes one, and what its end tells."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from ling_engine.pulse import Pulses

if TYPE_CHECKING:
    from collections.abc import Callable


def child(work: Callable[[], bool], *, stays: bool = True) -> tuple[int, bool]:
    """A fork that has done that work; its pid, and what the work said."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(theirs, b"1" if work() else b"0")
            if stays:
                signal.pause()
        finally:
            os._exit(0)  # whatever happens: no second run of the tests goes on from here
    os.close(theirs)
    said = os.read(ours, 1) == b"1"
    os.close(ours)
    return pid, said


def always() -> bool:
    return True


def test_each_child_has_one_and_its_end_is_told_with_its_pid() -> None:
    pulses = Pulses(2)
    first, second, third = (child(pulses.take) for _ in range(3))
    assert [one[1] for one in (first, second, third)] == [True, True, False], "one for each that was thought of"
    told: list[int] = []
    waiting = threading.Thread(target=lambda: told.append(pulses.owner_gone(1, always)))
    waiting.start()
    assert told == []
    os.kill(second[0], signal.SIGKILL)
    waiting.join(60)
    assert told == [second[0]]
    for pid, _ in (first, third):
        os.kill(pid, signal.SIGKILL)
    for pid, _ in (first, second, third):
        os.waitpid(pid, 0)
    assert pulses.owner_gone(0, always) == first[0], "also of one that is gone already"


def test_who_comes_later_does_not_wipe_out_a_death() -> None:
    pulses = Pulses(1)
    gone, _ = child(pulses.take, stays=False)
    os.waitpid(gone, 0)
    later, took = child(pulses.take, stays=False)
    os.waitpid(later, 0)
    assert not took
    assert pulses.owner_gone(0, always) == gone


def test_nobody_is_told_who_wants_to_know_no_more() -> None:
    assert Pulses(1).owner_gone(0, lambda: False) == 0


def test_only_a_main_thread_has_one() -> None:
    raised: list[type[BaseException]] = []

    def take() -> None:
        with pytest.raises(RuntimeError, match="main thread") as error:
            Pulses(1).take()
        raised.append(error.type)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert raised == [RuntimeError]
