"""The registrar: from mirrors and the kubelet's list to the directory that the agent is told."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ling_nodeagent import cluster, registrar, static
from ling_nodeagent.away import KubeletAway
from ling_nodeagent.cluster import Pod, Seen, SlotObject
from ling_nodeagent.directory import SlotSpec
from ling_nodeagent.registrar import Registrar
from ling_nodeagent.static import Directory

SPEC = SlotSpec(
    name="prod/chat-0", deployment="chat", revision="1a2b3c4d", revisions=frozenset({"1a2b3c4d"}),
    capacity=1024, grace_seconds=120, hold_seconds=60,
)  # fmt: skip
SLOT_POD = Pod(
    namespace="prod", name="chat-0", uid="u0", slot="prod/chat-0", slot_uid="s0", component="slot", revision=""
)


class Node:
    """The registrar's surroundings."""

    def __init__(self, memory: Path) -> None:
        self.pods, self.slots, self.memory = Seen[Pod](), Seen[SlotObject](), memory
        self.node = Seen[cluster.Node]()
        self.kubelet: Mapping[str, tuple[str, str]] | None = {}
        self.asked = 0
        self.posted: list[Directory] = []
        self.registrar = Registrar(
            pods=self.pods, slots=self.slots, ask=self.ask, post=self.posted.append, memory=memory, node=self.node,
            wall=lambda: 5000.0,
        )  # fmt: skip

    async def ask(self) -> Mapping[str, tuple[str, str]]:
        self.asked += 1
        if self.kubelet is None:
            raise KubeletAway("no kubelet")
        return self.kubelet

    def sync(self) -> None:
        self.pods.synced = self.slots.synced = True
        self.registrar.changed()

    async def until(self, devices: list[str]) -> Directory:
        async with asyncio.timeout(30):
            while not self.posted or sorted(self.posted[-1].callers) != devices:
                await asyncio.sleep(0.001)
        return self.posted[-1]

    async def until_asked(self, times: int) -> None:
        async with asyncio.timeout(30):
            while self.asked < times:
                await asyncio.sleep(0.001)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(registrar, "RETRY", 0.01)
    monkeypatch.setattr(registrar, "PAUSE", 0.001)
    node = Node(tmp_path / "directory.json")
    task = asyncio.create_task(node.registrar.run())
    yield node
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_is_told_before_all_sources_have_answered(node: Node) -> None:
    node.kubelet = None
    node.pods.objects = {"prod/chat-0": SLOT_POD}
    node.slots.objects = {"prod/chat-0": SlotObject(uid="s0", spec=SPEC)}
    node.pods.synced = True
    node.registrar.changed()
    await node.until_asked(2)
    node.kubelet = {"d000": ("prod", "chat-0")}
    await node.until_asked(3)
    assert node.posted == []
    node.sync()
    found = await node.until(["d000"])
    assert found.slots == {"prod/chat-0": replace(SPEC, pod_stays=True)}


async def test_an_unknown_caller_makes_it_ask_the_kubelet(node: Node) -> None:
    node.sync()
    await node.until([])
    node.pods.objects = {"prod/chat-0": SLOT_POD}
    node.slots.objects = {"prod/chat-0": SlotObject(uid="s0", spec=SPEC)}
    node.registrar.changed()
    await node.until_asked(2)
    node.kubelet = {"d007": ("prod", "chat-0")}
    node.registrar.unknown("d007")
    await node.until(["d007"])


async def test_a_device_that_is_given_away_is_nobodys_at_once(node: Node) -> None:
    node.kubelet = {"d000": ("prod", "chat-0")}
    node.pods.objects = {"prod/chat-0": SLOT_POD}
    node.slots.objects = {"prod/chat-0": SlotObject(uid="s0", spec=SPEC)}
    node.sync()
    await node.until(["d000"])
    node.registrar.allocated("d000")
    assert node.posted[-1].callers == {}


async def test_a_successor_goes_by_what_was_remembered_as_far_as_the_kubelet_agrees(node: Node) -> None:
    node.kubelet = {"d000": ("prod", "chat-0")}
    node.pods.objects = {"prod/chat-0": SLOT_POD}
    node.slots.objects = {"prod/chat-0": SlotObject(uid="s0", spec=SPEC)}
    node.sync()
    before = await node.until(["d000"])
    async with asyncio.timeout(30):
        while not node.memory.exists():
            await asyncio.sleep(0.001)
    assert node.memory.stat().st_mode & 0o777 == 0o600
    remembered = static.read(node.memory)
    believed = {name: replace(spec, pod_stays=False) for name, spec in before.slots.items()}  # who says that it leaves
    assert remembered == replace(before, slots=believed)

    after = Node(node.memory)  # no API server: its mirrors never sync
    after.kubelet = {"d000": ("prod", "chat-0"), "d001": ("prod", "stranger")}
    task = asyncio.create_task(after.registrar.run())
    assert await after.until(["d000"]) == remembered
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_broken_memory_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "directory.json").write_text("{")
    node = Node(tmp_path / "directory.json")
    task = asyncio.create_task(node.registrar.run())
    node.sync()
    await node.until([])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("seen", "leaves_by"),
    [
        pytest.param(cluster.Node(), None, id="it stays"),
        pytest.param(cluster.Node(leaving=True, since=1000.0), 1010.0, id="its taint has a time"),
        pytest.param(cluster.Node(leaving=True), 5010.0, id="none of its taints has a time"),
    ],
)
async def test_a_node_that_is_left_is_told_with_the_slots(
    node: Node, seen: cluster.Node, leaves_by: float | None
) -> None:
    node.pods.objects = {"prod/chat-0": SLOT_POD}
    node.slots.objects = {"prod/chat-0": SlotObject(uid="s0", spec=SPEC, replacement_timeout=10.0)}
    node.kubelet = {"d000": ("prod", "chat-0")}
    node.node.objects = {"/n1": seen}
    node.sync()
    directory = await node.until(["d000"])
    assert directory.slots["prod/chat-0"].leaves_by == leaves_by
