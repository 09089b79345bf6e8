"""What the launcher does about each event: one table, phase x event -> next phase and actions.

The agent decides about roles; this table only makes sure that every message, death and signal, in any order, leads to
one defined step. A server's death never ends the launcher (the agent says Go or Stop), except when it fills only, or
when the checkpoint is no longer the one that the launcher described: only a launcher that starts anew looks again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ling_api.errors import CheckpointChanged


class Phase(StrEnum):
    """Where the launcher is."""

    CHECKING = "checking"  # zygote imports, the model is described; the agent does not know us yet
    GATED = "gated"  # no server
    STARTING = "starting"  # server forked, not yet able to accept
    WARM = "warm"  # server could accept
    ACTIVE = "active"  # server accepts
    LEAVING = "leaving"  # SIGTERM came while accepting; the agent may promote another first
    DRAINING = "draining"  # server accepts no more
    ENDING = "ending"  # server is being killed, then we exit
    ENDED = "ended"


class Event(StrEnum):
    """What may happen."""

    CHECKED = "checked"
    CHECK_FAILED = "check-failed"  # with an exit code
    WELCOMED = "welcomed"  # by the agent, perhaps a new one
    GO = "go"
    TOLD_ACTIVE = "told-active"
    TOLD_DRAINING = "told-draining"
    SERVER_WARM = "server-warm"
    SERVER_ACCEPTING = "server-accepting"
    SERVER_EXITED = "server-exited"  # with its exit code
    SIGTERM = "sigterm"
    STOP = "stop"  # with an exit code
    KILL = "kill"  # the agent found that our server lives and does not work
    LEAVE_OVERDUE = "leave-overdue"  # the agent did not answer Leaving
    DRAIN_OVERDUE = "drain-overdue"  # the server outlived the grace period


class Action(StrEnum):
    """What the launcher then does."""

    JOIN = "join"  # connect to the agent, say Hello
    START_SERVER = "start-server"
    TELL_ACTIVE = "tell-active"
    TELL_DRAINING = "tell-draining"
    WATCH_DRAIN = "watch-drain"  # DRAIN_OVERDUE after the grace period and a little
    SAY_LEAVING = "say-leaving"
    WATCH_LEAVING = "watch-leaving"  # LEAVE_OVERDUE, at once if the agent is away
    KILL_SERVER = "kill-server"
    EXIT = "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that decides the next step."""

    phase: Phase = Phase.CHECKING
    once: bool = False  # fill and exit
    leaving: bool = False  # exit when the server has ended
    go_again: bool = False  # the agent saw our server dead, and said Go, before we saw it
    exit_code: int = 0


_STAY: tuple[None, tuple[Action, ...]] = (None, ())
_P, _E, _A = Phase, Event, Action
_DRAIN = (_A.TELL_DRAINING, _A.WATCH_DRAIN)
_WITHOUT_SERVER = (_P.CHECKING, _P.GATED)
_NOT_SERVING = (_P.STARTING, _P.WARM)
_WITH_SERVER = (*_NOT_SERVING, _P.ACTIVE, _P.LEAVING, _P.DRAINING, _P.ENDING)

# Every pair that does something; all others leave everything as it is.
TABLE: dict[tuple[Phase, Event], tuple[Phase | None, tuple[Action, ...]]] = {
    (_P.CHECKING, _E.CHECKED): (_P.GATED, (_A.JOIN,)),
    (_P.CHECKING, _E.CHECK_FAILED): (_P.ENDED, (_A.EXIT,)),
    (_P.GATED, _E.CHECK_FAILED): (_P.ENDED, (_A.EXIT,)),
    (_P.GATED, _E.GO): (_P.STARTING, (_A.START_SERVER,)),
    (_P.STARTING, _E.SERVER_WARM): (_P.WARM, ()),
    (_P.STARTING, _E.TOLD_ACTIVE): (None, (_A.TELL_ACTIVE,)),
    (_P.STARTING, _E.SERVER_ACCEPTING): (_P.ACTIVE, ()),
    (_P.WARM, _E.TOLD_ACTIVE): (None, (_A.TELL_ACTIVE,)),
    (_P.WARM, _E.SERVER_ACCEPTING): (_P.ACTIVE, ()),
    (_P.ACTIVE, _E.TOLD_ACTIVE): (None, (_A.TELL_ACTIVE,)),
    (_P.ACTIVE, _E.TOLD_DRAINING): (_P.DRAINING, _DRAIN),
    (_P.ACTIVE, _E.SIGTERM): (_P.LEAVING, (_A.SAY_LEAVING, _A.WATCH_LEAVING)),
    (_P.LEAVING, _E.TOLD_DRAINING): (_P.DRAINING, _DRAIN),
    (_P.LEAVING, _E.LEAVE_OVERDUE): (_P.DRAINING, _DRAIN),
    (_P.DRAINING, _E.SIGTERM): (None, (_A.SAY_LEAVING,)),
    (_P.DRAINING, _E.DRAIN_OVERDUE): (None, (_A.KILL_SERVER,)),
    # A server that does not accept has nothing to drain: it is told to go by SIGKILL, half-filled memory is dropped.
    **{(phase, _E.TOLD_DRAINING): (None, (_A.KILL_SERVER,)) for phase in _NOT_SERVING},
    **{(phase, _E.SIGTERM): (_P.ENDING, (_A.SAY_LEAVING, _A.KILL_SERVER)) for phase in _NOT_SERVING},
    **{(phase, _E.SIGTERM): (_P.ENDED, (_A.SAY_LEAVING, _A.EXIT)) for phase in _WITHOUT_SERVER},
    **{(phase, _E.STOP): (_P.ENDED, (_A.EXIT,)) for phase in _WITHOUT_SERVER},
    **{
        (phase, _E.STOP): (_P.ENDING, (_A.KILL_SERVER,))
        for phase in (*_NOT_SERVING, _P.ACTIVE, _P.LEAVING, _P.DRAINING)
    },
    **{(phase, _E.KILL): (None, (_A.KILL_SERVER,)) for phase in _WITH_SERVER},
    **{(phase, _E.SERVER_EXITED): (_P.GATED, ()) for phase in _WITH_SERVER},
}
_WITH_CODE = (Event.CHECK_FAILED, Event.STOP)
INTERRUPTED = 7  # a fill that was told to end did not fill


def decide(state: State, event: Event, code: int = 0) -> tuple[State, tuple[Action, ...]]:
    """The next state and what to do, in order. `code` is the exit code that some events carry."""
    if event is Event.WELCOMED or (event is Event.GO and state.phase in _WITH_SERVER):
        return replace(state, go_again=event is Event.GO), ()
    phase, actions = TABLE.get((state.phase, event), _STAY)
    if phase is None and not actions:
        return state, ()
    state = replace(state, phase=phase or state.phase)
    if event in _WITH_CODE:
        state = replace(state, leaving=True, exit_code=code)
    if event is Event.SIGTERM:
        state = replace(state, leaving=True, exit_code=INTERRUPTED if state.once else 0)
    if event is Event.SERVER_EXITED:
        return _after_exit(state, code)
    return state, actions


def _after_exit(state: State, code: int) -> tuple[State, tuple[Action, ...]]:
    if state.leaving:
        return replace(state, phase=Phase.ENDED), (Action.EXIT,)
    if state.once or code == CheckpointChanged.exit_code:
        exit_code = code if 0 <= code < 256 else 128 - code
        return replace(state, phase=Phase.ENDED, exit_code=exit_code), (Action.EXIT,)
    if state.go_again:
        return replace(state, phase=Phase.STARTING, go_again=False), (Action.START_SERVER,)
    return state, ()
