"""The values of an attach: what the agent answers, what a server needs, what it then has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ling_api.manifest import Manifest
    from ling_api.memory.base import Mapping, RankMemory

    from .model_thread import Runs
    from .rank import RankLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The agent's final word: tickets by set id, to fetch and to deposit."""

    granted: dict[str, str]
    tickets: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """One weight set in this process, read-only."""

    manifest: Manifest
    mapping: Mapping
    filled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """What an attach needs: `ask(sets)` gives the agent's final answer, `tell(step)` reports a
    step; `progress(0..1)` may be called from any thread."""

    link: RankLink
    memory: RankMemory
    thread: Runs
    ask: Callable[[list[str]], Awaitable[Answer]]
    tell: Callable[[str], None]
    progress: Callable[[float], None]
    revision: str  # "sha256:<hex>" that the checkpoint must have, or ""

    def revision_of(self, role: str) -> str:
        """What is asked of this set's content: an external draft is a checkpoint of its own."""
        return "" if role == "dspark" else self.revision
