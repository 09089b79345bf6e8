"""Whose turn it is: work of a parked server makes room for the active engine while that one has a request.

The agent says when (op `turn`); what can wait a little is cut into pieces and pauses after each, so that it takes at
most a twentieth of the time. Start-up itself needs no turn: it does not hold the active engine up.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.05


class Turns:
    """Set on the event loop, read by any thread."""

    def __init__(self) -> None:
        self.busy = False

    def rest(self, worked: float) -> float:
        """Seconds to pause after a piece of work that took so many."""
        return worked * (1 / SHARE - 1) if self.busy else 0.0
