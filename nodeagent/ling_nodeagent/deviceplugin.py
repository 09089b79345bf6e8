"""The kubelet's device plugin: how a pod gets its private folder of sockets.

A "device" is a folder RUN/d/dNNN with the agent's sockets. Whoever asks for one `ling.dev/node-agent` has it mounted at
/run/ling, read-only, and the node's models at /models; thus pods go only where an agent lives, none needs hostPath,
and the folder in which a caller arrives says which pod it is. The folder itself is made once and never removed: mounts
keep the inode.

A kubelet that starts again has forgotten its plugins and wipes their sockets, so the plugin registers whenever
kubelet.sock is new or its own socket is gone. Inode numbers are used again at once: the change time tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc

from ling_api import names

from .kubelet import deviceplugin_pb2 as pb
from .kubelet import deviceplugin_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LOG = logging.getLogger("ling.deviceplugin")
DEVICES = tuple(f"d{number:03d}" for number in range(names.DEVICES))
OWN_SOCKET = "ling-node-agent.sock"
POLL, RETRY = 0.1, 0.5  # seconds
TIMEOUT = 5.0

type Context = grpc.aio.ServicerContext[Any, Any]


class DevicePlugin(rpc.DevicePluginServicer):
    """`renew(device)` gives the folder, emptied for its next pod; ValueError when there is no such device, OSError."""

    def __init__(self, plugin_dir: Path, models_dir: Path, renew: Callable[[str], Path]) -> None:
        self.plugin_dir = plugin_dir
        self.models_dir = models_dir
        self.renew = renew
        self.registered = False  # as far as we know
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve and register until cancelled."""
        seen: tuple[int, int, int] | None = None
        complaint = ""
        try:
            while True:
                now = _stamp(self.plugin_dir / "kubelet.sock")
                if now is not None and (now != seen or not (self.plugin_dir / OWN_SOCKET).exists()):
                    seen, problem = now, await self._join()
                    if problem:
                        seen = None
                        if problem != complaint:
                            LOG.warning("event=not-registered reason=%r", problem)
                    complaint = problem
                await asyncio.sleep(RETRY if complaint else POLL)
        finally:
            await self._leave()

    async def _join(self) -> str:
        """A fresh server, registered; returns why not, or nothing."""
        await self._leave()
        self._stopping = asyncio.Event()
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        (self.plugin_dir / OWN_SOCKET).unlink(missing_ok=True)
        try:
            self._server.add_insecure_port(f"unix:{self.plugin_dir / OWN_SOCKET}")
            await self._server.start()
            await self._register()
        except grpc.aio.AioRpcError as error:
            return f"the kubelet refused: {error.details()}"
        except (OSError, RuntimeError) as error:
            return f"cannot serve in {self.plugin_dir}: {error}"
        self.registered = True
        LOG.info("event=registered resource=%s devices=%d", names.RESOURCE, len(DEVICES))
        return ""

    async def _register(self) -> None:
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=OWN_SOCKET, resource_name=names.RESOURCE, options=pb.DevicePluginOptions()
        )
        options = [("grpc.default_authority", "localhost")]
        address = f"unix:{self.plugin_dir / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=TIMEOUT)

    async def _leave(self) -> None:
        self.registered = False
        self._stopping.set()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    # called by the kubelet

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All devices, healthy as long as this stream lives."""
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=device, health="Healthy") for device in DEVICES])
        await self._stopping.wait()

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """The mounts of each container: its device's folder and the models."""
        answer = pb.AllocateResponse()
        for container in request.container_requests:
            wanted = list(container.devices_ids)
            try:
                (device,) = wanted
                folder = self.renew(device)
            except ValueError:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"a container has one {names.RESOURCE}: write limits {{{names.RESOURCE}: 1}} (asked: {wanted})",
                )
            except OSError as error:
                await context.abort(grpc.StatusCode.INTERNAL, f"cannot prepare the folder of {wanted}: {error}")
            answer.container_responses.append(pb.ContainerAllocateResponse(mounts=self._mounts(folder)))
            LOG.info("event=allocated device=%s", device)
        return answer

    def _mounts(self, folder: Path) -> list[pb.Mount]:
        return [
            pb.Mount(container_path=names.RUN_DIR, host_path=str(folder), read_only=True),
            pb.Mount(container_path=names.MODELS_DIR, host_path=str(self.models_dir), read_only=True),
        ]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(FileNotFoundError):
        stat = path.stat()
        return (stat.st_dev, stat.st_ino, stat.st_ctime_ns)
    return None
