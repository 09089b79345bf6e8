"""SIGKILL of every process of a slot, and of every pair, at every step of a server's life: one table.

After each row the slot serves with the right bytes, a sealed set is the same memory as before, no two servers filled at
once, and nothing of it is left when all has been told to end. Rules 1, 2 and 4 of the product, and its clean-up.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import deaths, witness

from ling_engine.__main__ import main as engine

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.deaths import Ground
    from tests.support.nursery import Nursery

STANDIN, REFERENCE = "tests.support.watched:STANDIN", "tests.support.watched:REFERENCE"
ROWS = [
    pytest.param(step, victims, id=f"{step}-{'+'.join(victims)}") for step in deaths.STEPS for victims in deaths.VICTIMS
]
WITH_TORCH = [
    pytest.param(step, victims, id=f"{step}-{'+'.join(victims)}")
    for step, victims in (
        ("fill", ("agent", "server")),
        ("attach", ("launcher", "agent")),
        ("serve", ("agent", "keeper")),
    )
]
ALL = 1 << 20
AHEAD = 2  # slots that are made ready while a row runs


class Stable:
    """Slots made ready ahead of the rows that want them, in the rows' order."""

    def __init__(self, nursery: Nursery, steps: list[str]) -> None:
        self.nursery = nursery
        self._steps = steps
        self._pool = ThreadPoolExecutor(AHEAD)
        self._coming: list[tuple[str, Future[Ground]]] = []

    def take(self, step: str) -> Ground:
        while self._steps and len(self._coming) <= AHEAD:
            wanted = self._steps.pop(0)
            self._coming.append((wanted, self._pool.submit(deaths.prepared, self.nursery, wanted, STANDIN)))
        if not self._coming or self._coming[0][0] != step:  # a row that is run once more
            return deaths.prepared(self.nursery, step, STANDIN)
        return self._coming.pop(0)[1].result()

    def close(self) -> None:
        for _, ground in self._coming:
            if not ground.cancel() and ground.exception() is None:
                ground.result().close()
        self._pool.shutdown()


@pytest.fixture(scope="module")
def stable(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[Stable]:
    rows = [item for item in request.session.items if getattr(item, "originalname", "") == test_deaths.__name__]
    made = Stable(nursery, [row.callspec.params["step"] for row in rows])  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.fixture(scope="module")
def empty_agent(nursery: Nursery) -> Counter[str]:
    """What an agent has open that knows of nobody."""
    ground = deaths.Ground(nursery, STANDIN)
    try:
        ground.direct(empty=True)
        ground.start_agent()
        status = ground.run / "status.sock"
        ground.until(status.exists, "an agent", deaths.START)
        ground.status()
        ground.until(lambda: not witness.callers(status), "it has closed what we asked it by")
        return open_of(ground.agent.pid)
    finally:
        ground.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    assert engine(["make-model", str(folder / "model"), "--preset", "tiny", "--seed", "1"]) == 0
    return folder / "model"


def open_of(pid: int) -> Counter[str]:
    """Descriptors that could leak, by kind; a log file is none."""
    found = witness.kinds(pid)
    return type(found)({kind: count for kind, count in found.items() if not kind.endswith(".log")})


@pytest.mark.parametrize(("step", "victims"), ROWS)
def test_deaths(step: str, victims: tuple[str, ...], stable: Stable, empty_agent: Counter[str]) -> None:
    ground = stable.take(step)
    try:
        live_through(ground, step, victims)
        end(ground, empty_agent)
    finally:
        ground.close()


@pytest.mark.parametrize(("step", "victims"), WITH_TORCH)
def test_deaths_with_the_reference_engine(
    step: str, victims: tuple[str, ...], nursery: Nursery, tiny: Path, empty_agent: Counter[str]
) -> None:
    ground = deaths.prepared(nursery, step, REFERENCE, tiny)
    try:
        live_through(ground, step, victims)
        end(ground, empty_agent)
    finally:
        ground.close()


class Client:
    """One request, sent at once, on a connection of its own."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._answer: Any = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._answer = self._ground.ask()
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self._answer = error

    def answer(self, ground: Ground, seconds: float) -> str:
        self._thread.join(seconds)
        assert isinstance(self._answer, str), f"a client got {self._answer!r}\n{ground.status()}\n{ground.story()}"
        return self._answer


def live_through(ground: Ground, step: str, victims: tuple[str, ...]) -> None:
    """Kills, starts again what Kubernetes would, and insists that everything is whole within the time allowed."""
    until = time.monotonic() + ground.patience
    before = memory_of_all(ground)
    again = ground.kill(victims)
    client = Client(ground)
    ground.start_again(again)
    for each in ground.engines:
        each.let_go()
    client.answer(ground, until - time.monotonic())
    ground.until(lambda: whole(ground), "everybody holds everything", until - time.monotonic())

    lost = step in ("fill", "wait") and bool({"server", "launcher"} & set(victims))
    insist_on_fills(ground, fills=2 if lost else 1)
    after = memory_of_all(ground)
    assert len(after) == 2, f"one region and one manifest are all that is held, not {after}: {ground.story()}"
    if lost:
        assert not before & after, "what a dead server filled is held by somebody"
    else:
        assert before <= after, f"the set is other memory than before: {before} {after}: {ground.story()}"

    witness.kill([serving_process(ground)])
    Client(ground).answer(ground, ground.patience)
    insist_on_fills(ground, fills=2 if lost else 1)
    assert memory_of_all(ground) == after


def serving_process(ground: Ground) -> int:
    """The active server."""
    pod = ground.until(lambda: ground.serving() and ground.status()["active"]["pod"], "somebody serves")
    return next(each for each in ground.engines if each.pod == pod).process("server")


def insist_on_fills(ground: Ground, *, fills: int) -> None:
    seen = ground.events()
    counted = (seen["fill"], seen["filled"], seen["two-fillers"])
    assert counted == (fills, 1, 0), f"fills, filled, fillers at once: {counted}: {ground.story()}"
    codes = set(re.findall(r"server=ended code=(-?\d+)", ground.story(ALL)))
    assert codes <= {"-9", "0"}, f"a server failed by itself: {codes}: {ground.story()}"


def memory_of_all(ground: Ground) -> set[witness.Memory]:
    """Every memfd of weights that a process of ours has open."""
    return {each for pid in ground.alive() for each in witness.memory(pid)}


def whole(ground: Ground) -> bool:
    """Somebody serves; agent, keeper and every launcher hold the set and the listener again."""
    for each in tuple(ground.engines):
        if each.command == "fill" and not each.launcher:
            assert each.program.exit() == 0, ground.story()
            ground.engines.remove(each)
            ground.direct()
    status = ground.status()
    return (
        ground.serving(status)
        and all(each.command == "run" for each in ground.engines)
        and [each["state"] for each in status["weightSets"]] == ["sealed"]
        and all(ground.holders().values())
        and deaths.held_by_all(ground)
        and deaths.listener_spread(ground)
    )


def end(ground: Ground, empty_agent: Counter[str]) -> None:
    """All pods are deleted, then the slot, then the agent ends: nothing is left at any of these moments."""
    memory = memory_of_all(ground)
    for each in ground.engines:
        each.program.terminate()
    codes = [each.program.exit() for each in ground.engines]
    assert codes == [0] * len(codes), ground.story()
    ground.engines.clear()
    ground.direct()
    ground.keeper.terminate()
    assert ground.keeper.exit() == 0
    assert not witness.strangers(each.inode for each in memory)
    ground.direct(empty=True)
    ground.until(lambda: open_of(ground.agent.pid) == empty_agent, f"the agent has only {empty_agent} open")
    ground.agent.terminate()
    assert ground.agent.exit() == 0
    assert ground.alive() == {}
    assert "Traceback" not in ground.story(ALL), ground.story()
