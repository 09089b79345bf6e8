"""Asks the kubelet which pod was given which device: an identity that needs neither tokens nor the API server."""

from __future__ import annotations

import grpc

from ling_api import names

from .away import KubeletAway
from .kubelet import podresources_pb2 as pb
from .kubelet import podresources_pb2_grpc as rpc

TIMEOUT = 2.0  # seconds; an answer takes 10 ms
MAX_BYTES = 64 << 20


async def devices(socket: str) -> dict[str, tuple[str, str]]:
    """Device id -> (namespace, pod name) of every pod on the node that has a node-agent device. Raises KubeletAway."""
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", MAX_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        stub = rpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.List(pb.ListPodResourcesRequest(), timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise KubeletAway(f"the kubelet does not answer at {socket}: {error.details()}") from error
    return {
        device: (pod.namespace, pod.name)
        for pod in answer.pod_resources
        for container in pod.containers
        for given in container.devices
        if given.resource_name == names.RESOURCE
        for device in given.device_ids
    }
