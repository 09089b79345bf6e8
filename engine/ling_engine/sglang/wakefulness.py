"""A standby's ranks sleep until a request comes; an active engine's look for requests all the time, as SGLang does.

A rank that slept is woken on whatever core there is. In a virtual machine five answers of ten then took 1.1 to 1.4
times as long as the others, where a rank that never slept had all alike: so much was seen (docs/performance.md), and
this is the likely cause. A standby that looked all the time would take a core from the engine beside it, and two ranks
would tell each other of every turn.
"""

from __future__ import annotations

import importlib
import mmap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import Protocol

    class Sleeper(Protocol):
        """What SGLang's scheduler has, and asks whenever it has nothing to do."""

        def maybe_sleep(self) -> None: ...


SLEEPER: Final = "sglang.srt.managers.scheduler.Scheduler.init_idle_sleeper"


class Role:
    """Whether an engine is active: one page that a server shares with the processes that it forks afterwards."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def active(self) -> bool:
        return self._page[0] == 1

    def promote(self) -> None:
        self._page[0] = 1


class Wakeful:
    """Sleeps as `sleeper` does while the engine stands by."""

    def __init__(self, sleeper: Sleeper, role: Role) -> None:
        self._sleeper, self._role = sleeper, role

    def maybe_sleep(self) -> None:
        if not self._role.active:
            self._sleeper.maybe_sleep()


_roles: list[Role] = []  # this server's, or none: SGLang without a server of ours decides for itself


def shared() -> Role:
    """In a server, before it forks."""
    _roles[:] = [Role()]
    return _roles[0]


def give(_: object, scheduler: Any, *args: object, **kwargs: object) -> None:
    """After SLEEPER: a sleeper for the rank that requests come to, where SGLang's flag has not made one."""
    if not _roles or scheduler.idle_sleeper is not None or not _first():
        return
    module: Any = importlib.import_module("sglang.srt.managers.scheduler_components.idle_sleeper")
    channels = scheduler.ipc_channels
    sleeper = module.IdleSleeper(
        sockets=[channels.recv_from_tokenizer, channels.recv_from_rpc],
        can_empty_cache=lambda: not scheduler._engine_paused,
    )
    scheduler.idle_sleeper = Wakeful(sleeper, _roles[0])


def _first() -> bool:
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    parallel = context.get_parallel()
    return bool(parallel.pp_rank == parallel.attn_tp_rank == parallel.attn_cp_rank == 0)
