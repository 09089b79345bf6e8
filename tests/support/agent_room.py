"""A real agent in this process with real keepers beside it, for integration tests of the node agent."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.ports import free_port
from tests.support import processes
from tests.support.launcher_client import LauncherClient
from tests.support.rank_client import MIB, RankProcess

from ling_nodeagent.directory import Caller, SlotSpec, Wish
from ling_nodeagent.hub import Agent

if TYPE_CHECKING:
    from collections.abc import Callable

SLOT = "ns/demo-0"
REVISION, NEXT = "aaaaaaaa", "bbbbbbbb"


class Statuses:
    """A publisher that keeps the newest."""

    def __init__(self) -> None:
        self.newest: dict[str, Any] = {}
        self.published = 0

    def publish(self, slot: str, status: Any) -> None:
        self.newest[slot] = status
        self.published += 1


class AgentRoom:
    """`async with AgentRoom() as room`: an agent, a keeper process on d000, engine folders d001 and up."""

    def __init__(self, *, devices: int = 8, capacity: int = 64 * MIB, keeper: bool = True) -> None:
        self.stack = ExitStack()
        self.run_dir = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="ling-", dir="/tmp")))
        self.devices = devices
        self.statuses = Statuses()
        self.capacity = capacity
        self.with_keeper = keeper
        self.keeper: Any = None
        self.port = free_port()
        self.probe_port = free_port()
        self.engines: dict[str, Caller] = {}
        self.spec = SlotSpec(
            name=SLOT, deployment="demo", revision=REVISION, revisions=frozenset({REVISION, NEXT}),
            capacity=capacity, grace_seconds=5, hold_seconds=30,
        )  # fmt: skip
        self.ranks: list[RankProcess] = []
        self.launchers: list[LauncherClient] = []
        self.agent = self.make_agent()

    def make_agent(self) -> Agent:
        """A new one; what the one before has published is not read any more."""
        self.statuses.newest.clear()
        return Agent(
            self.run_dir, self.statuses, node="node-1", devices=self.devices, recover_min=0.05, recover_max=3.0
        )

    async def __aenter__(self) -> AgentRoom:
        await self.agent.start()
        self.tell()
        if self.with_keeper:
            self.start_keeper()
        return self

    async def __aexit__(self, *_: object) -> None:
        for launcher in self.launchers:
            await launcher.close()
        for rank in self.ranks:
            rank.kill()
        await self.agent.stop()
        self.stack.close()

    def start_keeper(self) -> None:
        env = {
            "LING_RUN": str(self.folder("d000")), "LING_PORT": str(self.port), "LING_ADDRESS": "127.0.0.1",
            "LING_PROBE_PORT": str(self.probe_port),
        }  # fmt: skip
        self.keeper = self.stack.enter_context(
            processes.python("-m", "ling_nodeagent.keeper", env=env, log=self.run_dir / "keeper.log")
        )

    def folder(self, device: str) -> Path:
        return self.run_dir / "d" / device

    def tell(self, **changes: Any) -> None:
        """Directory and specs as they are now, with fields of the spec changed."""
        if changes:
            values = {name: getattr(self.spec, name) for name in SlotSpec.__slots__}
            self.spec = SlotSpec(**{**values, **changes})
        callers = {"d000": Caller(device="d000", namespace="ns", pod="demo-0", uid="keeper-uid", slot=SLOT,
                                  component="slot", revision="")}  # fmt: skip
        self.agent.callers_changed({**callers, **self.engines})
        self.agent.slots_changed({SLOT: self.spec})

    def wish(self, pod: str) -> None:
        self.tell(wish=Wish(pod=pod, term=self.slot.term))

    async def engine(self, device: str, pod: str, *, connect: bool = True, **fields: Any) -> LauncherClient:
        revision = fields.get("revision", REVISION)
        self.engines[device] = Caller(
            device=device, namespace="ns", pod=pod, uid=f"uid-{pod}", slot=SLOT, component="engine", revision=revision
        )
        self.tell()
        launcher = LauncherClient(folder=self.folder(device), pod=pod, **{"revision": revision, **fields})
        if connect:
            await launcher.open()
            self.launchers.append(launcher)
        return launcher

    async def rank(self, launcher: LauncherClient, server: str, **options: str) -> RankProcess:
        """Forks a server: its rank's process, and the launcher's word STARTED."""
        rank = await asyncio.to_thread(RankProcess, launcher.folder, server, **options)
        self.ranks.append(rank)
        launcher.server = server
        await launcher.event(1)
        return rank

    @property
    def slot(self) -> Any:
        return self.agent.slots[SLOT]

    async def until[T](self, look: Callable[[], T], what: str, seconds: float = 90.0) -> T:
        """Waits until the agent's facts say so."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not (value := look()):
            assert asyncio.get_running_loop().time() < deadline, f"waited {seconds} s in vain for: {what}"
            await asyncio.sleep(0.005)
        return value
