"""The device plugin and the pod-resources client against a kubelet's local APIs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.support.fake_kubelet import FakeKubelet

from ling_nodeagent import podresources
from ling_nodeagent.away import KubeletAway
from ling_nodeagent.deviceplugin import OWN_SOCKET, DevicePlugin
from ling_nodeagent.kubelet import deviceplugin_pb2


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    (tmp_path / "plugins").mkdir()
    kubelet = FakeKubelet(tmp_path / "plugins")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


class Plugin:
    """A device plugin whose folders are only names, and what it gave away."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.plugin_dir, self.models_dir = folder / "run", folder / "plugins", folder / "models"
        self.given: list[str] = []
        self.plugin = DevicePlugin(self.plugin_dir, self.models_dir, self.renew)

    def renew(self, device: str) -> Path:
        if device not in ("d000", "d255"):
            raise ValueError(device)
        self.given.append(device)
        return self.run_dir / "d" / device


@pytest.fixture
async def plugin(kubelet: FakeKubelet, tmp_path: Path) -> AsyncIterator[Plugin]:
    plugin = Plugin(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(plugin.plugin.run())
        yield plugin
        task.cancel()


async def test_it_registers_and_offers_256_healthy_devices(kubelet: FakeKubelet, plugin: Plugin) -> None:
    request = await kubelet.registered()
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", OWN_SOCKET, "ling.dev/node-agent")
    async with kubelet.plugin(request.endpoint) as stub:
        stream = stub.ListAndWatch(deviceplugin_pb2.Empty())
        first = await stream.read()
        assert [device.ID for device in first.devices] == [f"d{number:03d}" for number in range(256)]
        assert {device.health for device in first.devices} == {"Healthy"}
        stream.cancel()


async def test_allocate_mounts_the_renewed_folder_and_the_models_read_only(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    container = await kubelet.allocate((await kubelet.registered()).endpoint, "d000")
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in container.mounts] == [
        ("/run/ling", str(plugin.run_dir / "d" / "d000"), True),
        ("/models", str(plugin.models_dir), True),
    ]
    assert not (container.ListFields()[1:])  # nothing but mounts
    assert plugin.given == ["d000"]


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(("d000", "d255"), id="two"),
        pytest.param((), id="none"),
        pytest.param(("../d000",), id="no-device-of-ours"),
    ],
)
async def test_anything_but_one_device_is_refused_with_what_to_write(
    kubelet: FakeKubelet, plugin: Plugin, devices: tuple[str, ...]
) -> None:
    endpoint = (await kubelet.registered()).endpoint
    with pytest.raises(grpc.aio.AioRpcError, match=r"write limits \{ling.dev/node-agent: 1\}"):
        await kubelet.allocate(endpoint, *devices)
    assert plugin.given == []


async def test_a_kubelet_that_starts_again_is_joined_again_also_at_the_same_inode(
    kubelet: FakeKubelet, plugin: Plugin
) -> None:
    await kubelet.registered()
    socket, aside = plugin.plugin_dir / "kubelet.sock", plugin.plugin_dir / "aside"
    inode = socket.stat().st_ino
    os.link(socket, aside)
    socket.unlink()
    aside.rename(socket)
    assert socket.stat().st_ino == inode
    again = await kubelet.registered()
    await kubelet.allocate(again.endpoint, "d000")


async def test_its_wiped_socket_is_made_again(kubelet: FakeKubelet, plugin: Plugin) -> None:
    await kubelet.registered()
    (plugin.plugin_dir / OWN_SOCKET).unlink()
    again = await kubelet.registered()
    await kubelet.allocate(again.endpoint, "d000")


async def test_a_refusal_is_tried_again(kubelet: FakeKubelet, plugin: Plugin) -> None:
    await kubelet.registered()
    kubelet.refusal = "unsupported version"
    (plugin.plugin_dir / OWN_SOCKET).unlink()
    async with asyncio.timeout(60):
        while kubelet.refused == 0:
            await asyncio.sleep(0.01)
    assert not plugin.plugin.registered
    kubelet.refusal = ""
    await kubelet.registered()


async def test_pod_resources_name_the_pod_of_each_device_of_ours(kubelet: FakeKubelet) -> None:
    kubelet.pods = {"d000": ("prod", "chat-0"), "d001": ("prod", "chat-0-1a2b3c4d-0")}
    assert await podresources.devices(str(kubelet.pod_resources)) == kubelet.pods


async def test_no_kubelet_is_an_error_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(KubeletAway, match=r"does not answer at .*nobody\.sock"):
        await podresources.devices(str(tmp_path / "nobody.sock"))
