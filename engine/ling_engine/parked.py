"""Client connections that wait in the launcher for a server: none is forgotten here, whatever becomes of that server.

They come from a predecessor that drains. They go to our own server as soon as it accepts; if there is none, and perhaps
will never be (its revision was given up), they are offered to the agent every second, which knows who serves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ling_api import fdpass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_AGAIN_S = 1.0
_AT_ONCE = 64  # descriptors of one frame


class Parked:
    """`place(fds)` sends duplicates to where they belong now; False: nowhere yet."""

    def __init__(self, place: Callable[[Sequence[int]], bool]) -> None:
        self._place = place
        self._fds: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, fds: Sequence[int]) -> None:
        """They become ours; placed in a second, or when `settle` is called."""
        self._fds.extend(fds)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN_S, self.settle)

    def settle(self) -> None:
        """Places what can be placed now, the rest in a second."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._fds = self._fds, []
        while waiting and self._place(waiting[:_AT_ONCE]):
            fdpass.close_all(waiting[:_AT_ONCE])
            del waiting[:_AT_ONCE]
        if waiting:
            self.keep(waiting)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        fdpass.close_all(self._fds)
        self._fds.clear()
