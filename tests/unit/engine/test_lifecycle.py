"""Every phase x event of the launcher leads where it should, and nowhere else."""

import itertools
from dataclasses import replace

import pytest

from ling_api.errors import CheckpointChanged, FillFailed
from ling_engine.lifecycle import INTERRUPTED, TABLE, Action, Event, Phase, State, decide

HAS_SERVER = (Phase.STARTING, Phase.WARM, Phase.ACTIVE, Phase.LEAVING, Phase.DRAINING, Phase.ENDING)
PAIRS = list(itertools.product(Phase, Event))


@pytest.mark.parametrize(("phase", "event"), PAIRS, ids=[f"{p}-{e}" for p, e in PAIRS])
@pytest.mark.parametrize("once", [False, True], ids=["run", "fill"])
def test_every_pair_is_decided_and_keeps_the_rules(phase: Phase, event: Event, once: bool) -> None:
    before = State(phase=phase, once=once, leaving=phase in (Phase.LEAVING, Phase.ENDING))
    after, actions = decide(before, event, 5)
    if (phase, event) not in TABLE:
        assert (replace(after, go_again=False), actions) == (before, ())
        assert after.go_again == (event is Event.GO and phase in HAS_SERVER)
        return
    if phase not in HAS_SERVER:
        assert Action.KILL_SERVER not in actions
        assert Action.TELL_ACTIVE not in actions
    assert (Action.EXIT in actions) == (after.phase is Phase.ENDED), "it exits exactly when it has ended"
    if Action.EXIT in actions and event is not Event.SERVER_EXITED:
        assert phase not in HAS_SERVER, "a live server is never left behind"
    if Action.START_SERVER in actions:
        assert phase is Phase.GATED


def test_an_ended_launcher_does_nothing_more() -> None:
    assert not any(phase is Phase.ENDED for phase, _ in TABLE)


@pytest.mark.parametrize(
    ("events", "phase", "actions"),
    [
        pytest.param([Event.CHECKED], Phase.GATED, [Action.JOIN], id="checked"),
        pytest.param([Event.CHECKED, Event.GO], Phase.STARTING, [Action.START_SERVER], id="go"),
        pytest.param([Event.CHECKED, Event.GO, Event.GO], Phase.STARTING, [], id="a-second-go-is-nothing"),
        pytest.param([Event.CHECKED, Event.GO, Event.SERVER_WARM, Event.TOLD_ACTIVE], Phase.WARM, [Action.TELL_ACTIVE],
                     id="warm-told-active"),
        pytest.param([Event.CHECKED, Event.GO, Event.TOLD_ACTIVE, Event.SERVER_ACCEPTING], Phase.ACTIVE, [],
                     id="told-before-warm"),
        pytest.param([Event.CHECKED, Event.GO, Event.SERVER_EXITED], Phase.GATED, [], id="a-death-waits-for-go"),
    ],
)  # fmt: skip
def test_the_ways_up(events: list[Event], phase: Phase, actions: list[Action]) -> None:
    state = State()
    done: tuple[Action, ...] = ()
    for event in events:
        state, done = decide(state, event)
    assert state.phase is phase
    assert list(done) == actions


@pytest.mark.parametrize("phase", HAS_SERVER[:3], ids=str)
def test_go_that_overtakes_the_news_of_a_death_is_obeyed_after_it(phase: Phase) -> None:
    state, actions = decide(State(phase=phase), Event.GO)
    assert (state.phase, actions) == (phase, ())
    state, actions = decide(state, Event.SERVER_EXITED, -9)
    assert (state.phase, state.go_again, actions) == (Phase.STARTING, False, (Action.START_SERVER,))


def test_go_of_a_former_agent_is_forgotten() -> None:
    state, _ = decide(State(phase=Phase.ACTIVE), Event.GO)
    state, _ = decide(state, Event.WELCOMED)
    state, actions = decide(state, Event.SERVER_EXITED, -9)
    assert (state.phase, actions) == (Phase.GATED, ())


@pytest.mark.parametrize("go_again", [False, True], ids=["", "told to go again"])
@pytest.mark.parametrize(
    ("code", "ends"),
    [(CheckpointChanged.exit_code, True), (FillFailed.exit_code, False), (-9, False)],
    ids=["the checkpoint changed", "any other fill that failed", "killed"],
)
def test_a_launcher_whose_description_is_of_another_checkpoint_ends(code: int, ends: bool, go_again: bool) -> None:
    """Each of its servers would ask for sets that its hello does not name; the next launcher describes anew."""
    state, actions = decide(State(phase=Phase.STARTING, go_again=go_again), Event.SERVER_EXITED, code)
    assert (Action.EXIT in actions) == ends
    assert Action.START_SERVER not in actions or not ends
    assert state.exit_code == (code if ends else 0)


def test_one_that_leaves_ends_with_0_whatever_its_checkpoint_is() -> None:
    before = State(phase=Phase.ENDING, leaving=True)
    state, actions = decide(before, Event.SERVER_EXITED, CheckpointChanged.exit_code)
    assert (state.exit_code, actions) == (0, (Action.EXIT,))


def test_sigterm_while_active_leaves_drains_and_exits_with_0() -> None:
    state, actions = decide(State(phase=Phase.ACTIVE), Event.SIGTERM)
    assert actions == (Action.SAY_LEAVING, Action.WATCH_LEAVING)
    state, actions = decide(state, Event.TOLD_DRAINING)
    assert actions == (Action.TELL_DRAINING, Action.WATCH_DRAIN)
    state, actions = decide(state, Event.LEAVE_OVERDUE)
    assert actions == (), "drains already"
    state, actions = decide(state, Event.SERVER_EXITED, 0)
    assert (state.phase, state.exit_code, actions) == (Phase.ENDED, 0, (Action.EXIT,))


def test_a_drain_without_sigterm_ends_gated() -> None:
    state, _ = decide(State(phase=Phase.ACTIVE), Event.TOLD_DRAINING)
    state, actions = decide(state, Event.SERVER_EXITED, 0)
    assert (state.phase, actions) == (Phase.GATED, ())


@pytest.mark.parametrize("phase", HAS_SERVER[:-1], ids=str)
def test_stop_kills_the_server_first_and_exits_with_its_code(phase: Phase) -> None:
    state, actions = decide(State(phase=phase), Event.STOP, 3)
    assert actions == (Action.KILL_SERVER,)
    state, actions = decide(state, Event.SERVER_EXITED, -9)
    assert (state.exit_code, actions) == (3, (Action.EXIT,))


@pytest.mark.parametrize(
    ("code", "exit_code"), [(0, 0), (3, 3), (5, 5), (7, 7), (-9, 137)], ids=["filled", "3", "5", "7", "killed"]
)
def test_a_fill_ends_with_its_servers_code(code: int, exit_code: int) -> None:
    state, actions = decide(State(phase=Phase.STARTING, once=True), Event.SERVER_EXITED, code)
    assert (state.exit_code, actions) == (exit_code, (Action.EXIT,))


def test_an_interrupted_fill_did_not_fill() -> None:
    state, _ = decide(State(phase=Phase.STARTING, once=True), Event.SIGTERM)
    state, _ = decide(state, Event.SERVER_EXITED, -9)
    assert state.exit_code == INTERRUPTED
