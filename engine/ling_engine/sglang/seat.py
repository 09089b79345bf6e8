"""What a rank inherits from its server by fork: where the agent is, which bytes it is to have, its place at the desk.

The server's main process calls `prepare` before SGLang forks its schedulers; in a scheduler `taken()` is the same
value. Nothing is put into the environment: a scheduler that was not forked from a server of ours finds no seat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_api.errors import PluginMissing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ling_api.identity import Identity

    from .desk import Desk


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """`memory`: cuda | memfd. `revision`: "sha256:<64 hex>" that the checkpoint's bytes must have, or ""."""

    run_dir: Path
    server: str
    identities: Mapping[tuple[str, int], Identity]  # (role, rank)
    revision: str
    memory: str
    desk: Desk


_seats: list[Seat] = []


def prepare(seat: Seat) -> None:
    """In the server's main process, once, before the ranks are forked."""
    _seats[:] = [seat]


def prepared() -> bool:
    """Whether this process attaches, or serves, weights of a slot."""
    return bool(_seats)


def taken() -> Seat:
    """Raises PluginMissing in a process that no server of ours prepared."""
    if not _seats:
        raise PluginMissing(
            "--load-format private attaches the weights of a slot; start the server by `ling-engine run`, not by itself"
        )
    return _seats[0]
