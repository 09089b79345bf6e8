"""Where a server of SGLang takes its weights from, and what it calls SGLang with. No SGLang here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ling_engine.metrics import ServerMetrics
from ling_engine.runtime import OFF, PREFERRED, REQUIRED, ModelSettings
from ling_engine.sglang import hosted, wakefulness
from ling_engine.sglang.describe import Device
from ling_engine.sglang.desk import RankDied

if TYPE_CHECKING:
    from collections.abc import Iterator


class Room:
    """The server around the body."""

    def __init__(self, policy: str) -> None:
        model = ModelSettings(
            path=Path("/m"), revision="", context_length=4096, max_queue=7, served_name="m", concurrency=3,
            weight_cache=policy,
        )  # fmt: skip
        self.settings: Any = SimpleNamespace(model_settings=lambda: model, run_dir=Path("/run/ling"))
        self.metrics = ServerMetrics()
        self.agent = asyncio.Event()
        self.link: Any = SimpleNamespace(welcomed=self.agent.wait)
        self.thread: Any = SimpleNamespace(run=self._run)
        self.told: list[str] = []
        self.started: list[Any] = []

    async def _run(self, function: Any, *args: Any) -> Any:
        return function(*args)

    def tell(self, step: str) -> None:
        self.told.append(step)

    def start(self, work: Any) -> None:
        self.started.append(work)


_desks: list[Any] = []


def body(policy: str) -> tuple[hosted.Hosted, Room]:
    around: Any = Room(policy)
    inside = hosted.Hosted(around, SimpleNamespace(), Device(capability=(9, 0)))  # type: ignore[arg-type]
    _desks.append(inside._desk)
    return inside, around


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    for desk in _desks:
        for pair in desk._pairs:
            for end in pair:
                end.close()
    _desks.clear()


@pytest.mark.parametrize(("policy", "cached"), [(REQUIRED, True), (PREFERRED, True), (OFF, False)])
async def test_the_policy_says_whose_weights_are_meant(policy: str, cached: bool) -> None:
    assert body(policy)[0]._cached is cached


async def test_preferred_waits_for_the_agent_and_then_uses_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, room = body(PREFERRED)
    monkeypatch.setattr(hosted.Hosted, "_free_and_wanted", lambda _: pytest.fail("an agent answers in time"))
    waiting = asyncio.create_task(inside._slot_or_free_memory())
    await asyncio.sleep(0)
    room.agent.set()
    assert await waiting is True


async def test_preferred_without_an_agent_reads_the_disk_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "_AGENT_PATIENCE_S", 0.01)
    monkeypatch.setattr(hosted.Hosted, "_free_and_wanted", lambda _: (100, 100))
    assert await body(PREFERRED)[0]._slot_or_free_memory() is False


async def test_preferred_without_agent_and_room_waits_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "_AGENT_PATIENCE_S", 0.001)
    tried = 0

    def full(_: Any) -> tuple[int, int]:
        nonlocal tried
        tried += 1
        return (99, 100) if tried < 4 else (100, 100)

    monkeypatch.setattr(hosted.Hosted, "_free_and_wanted", full)
    inside, room = body(PREFERRED)
    assert await inside._slot_or_free_memory() is False
    assert (tried, room.told) == (4, ["waiting"])


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["--a", "1", "--load-format", "private", "--b"], ["--a", "1", "--b"]),
        (["--load-format", "private"], []),
        (["--load-format", "auto"], ["--load-format", "auto"]),
        ([], []),
    ],
    ids=["in the middle", "alone", "another value", "nothing"],
)
def test_a_flag_with_its_value_is_left_out(argv: list[str], rest: list[str]) -> None:
    assert hosted._without(argv, "--load-format", "private") == rest


async def test_more_than_run_and_wait_are_told_to_come_again() -> None:
    assert body(REQUIRED)[0].limit == 3 + 7


async def test_a_process_that_fails_ends_the_server_after_what_it_said_itself() -> None:
    inside, room = body(REQUIRED)
    inside._quit()
    (work,) = room.started
    with pytest.raises(RankDied, match="its log says why"):
        await work


class Watch:
    """How it was closed."""

    def __init__(self) -> None:
        self.waited: list[bool] = []

    def close(self, *, waits: bool) -> None:
        self.waited.append(waits)


@pytest.mark.parametrize(
    ("policy", "dies", "attached", "waits"),
    [
        pytest.param(REQUIRED, False, True, True, id="an end in order"),
        pytest.param(REQUIRED, True, True, False, id="a death: the agent sees when the others' memory is free"),
        pytest.param(REQUIRED, True, False, True, id="a death before the agent knows all ranks"),
        pytest.param(OFF, True, True, True, id="a death of ranks that the agent never knows"),
    ],
)
async def test_a_dead_ranks_server_waits_for_nobody_whom_the_agent_watches(
    policy: str, dies: bool, attached: bool, waits: bool
) -> None:
    inside, room = body(policy)
    inside._roles = ("target",)
    if attached:
        inside._desk._have(0, {"role": "target", "set": "s", "nbytes": 1, "filled": False, "milliseconds": {}})
    if dies:
        inside._quit()
        with pytest.raises(RankDied):
            await room.started[0]
    inside._watch = watch = Watch()  # type: ignore[assignment]
    inside.close()
    assert watch.waited == [waits]


async def test_a_promotion_is_seen_by_what_was_forked_before() -> None:
    inside, _ = body(REQUIRED)
    role = wakefulness._roles[0]
    assert not role.active
    inside.promoted()
    assert role.active
    another, _ = body(REQUIRED)
    assert not wakefulness._roles[0].active, "a server's own"
    another.close()
