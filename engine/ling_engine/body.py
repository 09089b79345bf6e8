"""What lives inside a server: weights and application. The server around it has the launcher, the agent and HTTP.

A runtime of one process is given a body by `inprocess.py`. One that starts processes of its own (SGLang) brings a body:
it is `Hosting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from starlette.types import ASGIApp

    from .cohort import Answer
    from .metrics import ServerMetrics
    from .model_thread import ModelThread
    from .paths import Paths
    from .rank import RankLink
    from .settings import EngineSettings
    from .turns import Turns


class Room(Protocol):
    """What a server offers to its body. Everything but `progress` is called on the event loop."""

    settings: EngineSettings
    server_id: str
    thread: ModelThread
    link: RankLink
    metrics: ServerMetrics
    turns: Turns

    async def ask(self, sets: list[str]) -> Answer:
        """The agent's final answer about these weight sets, by way of the launcher. Raises Refused."""

    def tell(self, step: str) -> None:
        """A step is done, counted in milliseconds from the server's start; `filling` is told when it begins."""

    def progress(self, value: float) -> None:
        """0..1 of a fill; from any thread."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it beside the rest; its failure is the server's."""


class Body(Protocol):
    """In this order: `attach`, `warm_up`, `app`; `close` at the end, whatever happened."""

    async def attach(self) -> None:
        """All weights are there. Raises the errors of ling_api.errors; the server then ends with that exit code."""

    async def warm_up(self) -> None:
        """Afterwards the first request pays for nothing."""

    async def prove(self) -> None:
        """One token whose id is known, while parked. Raises DeviceError when another one comes."""

    def promoted(self) -> None:
        """The role is active from now on; before the listener is accepted on."""

    def app(self) -> ASGIApp:
        """The application, as far as `paths` goes."""

    @property
    def paths(self) -> Paths:
        """Which of the application's paths are served; all others are answered 403."""

    def say_mapped(self) -> None:
        """An agent is met, perhaps a new one: tell it what this process has attached."""

    @property
    def limit(self) -> int:
        """More generations than that at once are answered 429; 0: the application has a queue of its own."""

    def metrics(self) -> str:
        """Metrics of the runtime's own in Prometheus' text form; "" if it has none."""

    def close(self) -> None:
        """Ends what it started, at once."""


@runtime_checkable
class Hosting(Protocol):
    """A runtime whose weights are attached by processes that it starts itself."""

    def body(self, room: Room) -> Body:
        """In the server process, on its event loop."""
