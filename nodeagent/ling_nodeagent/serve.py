"""`ling-nodeagent serve`: the agent with its edges, in a cluster or by a static file, until SIGTERM.

The agent and the device plugin are there first: engines and kubelet wait for them, the API server does not.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

from ling_api import fdpass
from ling_api.errors import BadInput

from . import cluster, podresources, static
from .cluster import Node, Pod, Seen, SlotObject
from .deviceplugin import DevicePlugin
from .endpoints import Endpoints
from .hub import Agent
from .metrics import AgentCollector
from .publisher import Publisher
from .registrar import Registrar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .settings import Serve
    from .static import Directory

LOG = logging.getLogger("ling.serve")
MEMORY = "directory.json"


class LogPublisher:
    """Without a cluster status has no object: `ling-nodeagent status` shows it, the log says who serves."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, ...]] = {}

    def publish(self, slot: str, status: Mapping[str, Any]) -> None:
        """Log what changed hands."""
        active = status["active"]
        seen = (active["pod"], active["term"], *(each["status"] for each in status["conditions"]))
        if self._last.get(slot) != seen:
            self._last[slot] = seen
            LOG.info("event=status slot=%s active=%s term=%d", slot, active["pod"] or "-", active["term"])


async def run(settings: Serve) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInput (before anything is changed), OSError."""
    check_kernel()
    stop = asyncio.Event()
    fdpass.allow_many()  # 256 folders and every region twice
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        if settings.static is not None:
            await _static(settings, settings.static, stop)
        else:
            await _cluster(settings, stop)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def check_kernel() -> None:
    """Raises BadInput on a kernel that cannot say which process calls, or of which network namespace a socket is."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(fdpass.peer_pidfd(ours))
            fdpass.netns_cookie(ours)
        except OSError as error:
            raise BadInput(
                f"this node runs Linux {os.uname().release}; the agent needs Linux 6.5 or newer ({error.strerror})"
            ) from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the first task: the others were cancelled for it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _post(agent: Agent, directory: Directory) -> None:
    agent.callers_changed(directory.callers)
    agent.slots_changed(directory.slots)  # second: a slot that only its pods still name is one that is deleted


async def _static(settings: Serve, file: Path, stop: asyncio.Event) -> None:
    seen = static.stamp(file)
    directory = static.read(file)
    agent = Agent(settings.run_dir, LogPublisher(), node=settings.node, cache_dir=settings.cache_dir)
    await agent.start()
    endpoints = Endpoints(AgentCollector(agent.snapshot), lambda: "")
    try:
        _post(agent, directory)
        async with asyncio.TaskGroup() as tasks:
            if settings.metrics_port:
                await endpoints.start(settings.metrics_port)
            following = tasks.create_task(static.follow(file, seen, lambda news: _post(agent, news)))
            await stop.wait()
            following.cancel()
    finally:
        endpoints.stop()
        await agent.stop()


class ClusterEdges:
    """What stands between the agent and Kubernetes; every part goes on while another is away."""

    def __init__(self, settings: Serve) -> None:
        self.publisher = Publisher(self._write, self._times)
        self.agent = Agent(settings.run_dir, self.publisher, node=settings.node, cache_dir=settings.cache_dir)
        self.plugin = DevicePlugin(settings.plugin_dir, settings.models_dir, self._renew)
        self._node = settings.node
        self._pods, self._slots, self._self = Seen[Pod](), Seen[SlotObject](), Seen[Node]()
        self._taints = settings.leaving_taints
        self._registrar = Registrar(
            pods=self._pods,
            slots=self._slots,
            ask=lambda: podresources.devices(str(settings.pod_resources)),
            post=self._post,
            memory=settings.run_dir / MEMORY,
            node=self._self,
        )
        self.agent.on_unknown = self._registrar.unknown
        self._directory: Directory | None = None
        self._api: Any = None  # a kube.Api: that module is imported late

    def missing(self) -> str:
        """Why this agent is not ready, or nothing."""
        if not self.plugin.registered:
            return "the kubelet has not accepted the device plugin yet"
        return "" if self._directory is not None else "API server or kubelet have not said yet who is here"

    async def run(self) -> None:
        """Until cancelled. Raises (in a group) BadInput when no API server is configured."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plugin.run())
            tasks.create_task(self._registrar.run())
            kube = await asyncio.to_thread(importlib.import_module, "ling_nodeagent.kube")  # takes a second or two
            self._api = await kube.Api.open()
            changed = self._registrar.changed
            pods = kube.Mirror(self._api, kube.PODS, kube.of_node(self._node), cluster.pod_of, self._pods, changed)
            slots = kube.Mirror(self._api, kube.SLOTS, {}, cluster.slot_of, self._slots, changed)
            node = kube.Mirror(self._api, kube.NODES, kube.only_node(self._node), self._node_of, self._self, changed)
            for each in (pods, slots, node):
                tasks.create_task(each.run())
            await slots.listed.wait()  # before that the times of conditions are not known
            tasks.create_task(self.publisher.run())

    def _node_of(self, body: Mapping[str, Any]) -> Node:
        return cluster.node_of(body, self._taints)

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    def _post(self, directory: Directory) -> None:
        former = self._directory.slots if self._directory is not None else {}
        self._directory = directory
        _post(self.agent, directory)
        for name in former.keys() - directory.slots.keys():
            self.publisher.forget(name)

    def _renew(self, device: str) -> Path:
        folder = self.agent.renew_folder(device)
        self._registrar.allocated(device)
        return folder

    def _times(self, slot: str) -> Mapping[str, tuple[str, str]]:
        known = self._slots.objects.get(slot)
        return known.times if known is not None else {}

    async def _write(self, slot: str, status: dict[str, Any]) -> None:
        known = self._slots.objects.get(slot)
        await self._api.apply_status(slot, status, known.uid if known is not None else "")


async def _cluster(settings: Serve, stop: asyncio.Event) -> None:
    edges = ClusterEdges(settings)
    await edges.agent.start()
    endpoints = Endpoints(AgentCollector(edges.agent.snapshot), edges.missing)
    running = asyncio.create_task(edges.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        if settings.metrics_port:
            await endpoints.start(settings.metrics_port)
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # raises: it never ends by itself
    finally:
        stopping.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await edges.close()
        endpoints.stop()
        await edges.agent.stop()
