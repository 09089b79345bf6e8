"""Tells the agent who sits on which device, and what the slots here are meant to be.

Three sources: mirrors of the API server's pods and slots, and the kubelet's list of devices, which is asked when a pod
without a device appears and when an unknown device calls. Nothing is told before all three have answered once, since
what is missing from the directory counts as gone. Until then, and so while the API server is away, an agent that has
just started goes by what its predecessor remembered (a file that only the agents can write), as far as the kubelet
still says the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING

from ling_api.errors import BadInput

from . import cluster, static
from .away import KubeletAway
from .cluster import Devices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from .cluster import Node, Pod, Seen, SlotObject
    from .static import Directory

LOG = logging.getLogger("ling.registrar")
RETRY = 0.2  # seconds
PAUSE = 0.05  # seconds between two questions to the kubelet, however many strangers call


class Registrar:
    """`ask()` is the kubelet's answer: (namespace, pod name) by device. `post` takes each new directory."""

    def __init__(
        self,
        *,
        pods: Seen[Pod],
        slots: Seen[SlotObject],
        ask: Callable[[], Awaitable[Mapping[str, tuple[str, str]]]],
        post: Callable[[Directory], None],
        memory: Path,
        node: Seen[Node] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pods, self._slots, self._ask, self._post, self._memory = pods, slots, ask, post, memory
        self._node, self._wall = node, wall
        self._left_since: float | None = None  # when this agent first saw the node being left
        self._devices = Devices()
        self._answer: Mapping[str, tuple[str, str]] | None = None  # None: the kubelet has not answered yet
        self._posted: Directory | None = None
        self._remembered: Directory | None = None
        self._wake = asyncio.Event()
        self._asking = True
        self._asked_at = 0.0

    def changed(self) -> None:
        """A mirror has news."""
        self._wake.set()

    def unknown(self, device: str) -> None:
        """Somebody calls at a device that nobody has: ask the kubelet."""
        self._asking = True
        self._wake.set()

    def allocated(self, device: str) -> None:
        """The kubelet is giving the device to a new pod: whoever had it is no caller any more."""
        self._devices = cluster.allocated(self._devices, device)
        asyncio.get_running_loop().call_later(PAUSE, self.unknown, device)  # it says to whom before the pod can call
        if self._synced and self._answer is not None:
            self._tell(self._directory())

    async def run(self) -> None:
        """Until cancelled."""
        self._remembered = _recall(self._memory)
        while True:
            self._wake.clear()
            self._devices = cluster.bind(self._devices, self._pods.objects.values())
            if self._asking or self._someone_without_device():
                await self._ask_kubelet()
            if self._answer is not None and self._synced:
                self._tell(self._directory())
                self._remember()
            elif self._answer is not None and self._remembered is not None:
                self._tell(cluster.recalled(self._remembered, self._answer))
            await self._wake.wait()

    @property
    def _synced(self) -> bool:
        return self._pods.synced and self._slots.synced

    def _someone_without_device(self) -> bool:
        bound = set(self._devices.bound.values())
        return any(pod.uid not in bound for pod in self._pods.objects.values())

    async def _ask_kubelet(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._asked_at + PAUSE - loop.time()))
        self._asking, self._asked_at = False, loop.time()
        try:
            self._answer = await self._ask()
        except KubeletAway as error:
            LOG.warning("event=kubelet-away reason=%r", str(error))
            loop.call_later(RETRY, self.unknown, "")
            return
        self._devices = cluster.listed(self._devices, self._answer, self._pods.objects.values())

    def _directory(self) -> Directory:
        return cluster.directory(self._devices, self._pods.objects.values(), self._slots.objects, self._left())

    def _left(self) -> float | None:
        node = next(iter(self._node.objects.values()), None) if self._node is not None else None
        if node is None or not node.leaving:
            self._left_since = None
        elif self._left_since is None or node.since is not None:
            self._left_since = node.since if node.since is not None else self._wall()
        return self._left_since

    def _tell(self, directory: Directory) -> None:
        if directory != self._posted:
            self._posted = directory
            LOG.info("event=directory slots=%d callers=%d", len(directory.slots), len(directory.callers))
            self._post(directory)

    def _remember(self) -> None:
        if self._posted is None or self._posted == self._remembered:
            return
        new = self._memory.with_suffix(".new")
        try:
            new.write_text(json.dumps(static.to_dict(self._posted)))
            new.chmod(0o600)
            new.replace(self._memory)
        except OSError as error:
            LOG.warning("event=not-remembered file=%s reason=%r", self._memory, str(error))
            return
        self._remembered = self._posted


def _recall(memory: Path) -> Directory | None:
    try:
        return static.read(memory) if memory.exists() else None
    except BadInput as error:
        LOG.warning("event=memory-unreadable reason=%r", str(error))
        return None
