"""A kubelet's two local APIs: it accepts a device plugin, talks to it as the real one does, and lists pods' devices."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from ling_nodeagent.kubelet import deviceplugin_pb2 as dp
from ling_nodeagent.kubelet import deviceplugin_pb2_grpc as dp_rpc
from ling_nodeagent.kubelet import podresources_pb2 as pr
from ling_nodeagent.kubelet import podresources_pb2_grpc as pr_rpc

TIMEOUT = 120.0


class FakeKubelet(dp_rpc.RegistrationServicer, pr_rpc.PodResourcesListerServicer):
    """`registrations` gets every Register request; `pods` is what List answers: device -> (namespace, pod)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registrations: asyncio.Queue[dp.RegisterRequest] = asyncio.Queue()
        self.pods: dict[str, tuple[str, str]] = {}
        self.lists = 0
        self.refusal, self.refused = "", 0
        self._server: grpc.aio.Server | None = None

    @property
    def pod_resources(self) -> Path:
        return self.folder / "pod-resources.sock"

    async def start(self) -> None:
        self._server = grpc.aio.server()
        dp_rpc.add_RegistrationServicer_to_server(self, self._server)
        pr_rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.add_insecure_port(f"unix:{self.pod_resources}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Register(self, request: dp.RegisterRequest, context: Any) -> dp.Empty:
        if self.refusal:
            self.refused += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        self.registrations.put_nowait(request)
        return dp.Empty()

    async def List(self, request: pr.ListPodResourcesRequest, context: Any) -> pr.ListPodResourcesResponse:
        self.lists += 1
        return pr.ListPodResourcesResponse(
            pod_resources=[
                pr.PodResources(
                    namespace=namespace,
                    name=pod,
                    containers=[
                        pr.ContainerResources(
                            name="main",
                            devices=[
                                pr.ContainerDevices(resource_name="ling.dev/node-agent", device_ids=[device]),
                                pr.ContainerDevices(resource_name="example.com/other", device_ids=["d200"]),
                            ],
                        )
                    ],
                )
                for device, (namespace, pod) in self.pods.items()
            ]
        )

    async def registered(self) -> dp.RegisterRequest:
        """The next registration."""
        async with asyncio.timeout(TIMEOUT):
            return await self.registrations.get()

    @contextlib.asynccontextmanager
    async def plugin(self, endpoint: str) -> AsyncIterator[dp_rpc.DevicePluginStub]:
        """The plugin that registered `endpoint`, to be called."""
        async with grpc.aio.insecure_channel(f"unix:{self.folder / endpoint}") as channel:
            yield dp_rpc.DevicePluginStub(channel)

    async def allocate(self, endpoint: str, *devices: str) -> dp.ContainerAllocateResponse:
        request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=devices)])
        async with self.plugin(endpoint) as plugin:
            answer = await plugin.Allocate(request, timeout=TIMEOUT)
        (container,) = answer.container_responses
        return container
