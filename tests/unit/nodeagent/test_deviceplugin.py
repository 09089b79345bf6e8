"""The device plugin and the pod-resources client against a kubelet's local APIs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from tests.support.fake_kubelet import FakeKubelet

from ling_nodeagent import podresources
from ling_nodeagent.deviceplugin import OWN_SOCKET, DevicePlugin, Places
from ling_nodeagent.kubelet import deviceplugin_pb2


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    (tmp_path / "plugins").mkdir()
    kubelet = FakeKubelet(tmp_path / "plugins")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for device in ("d000", "d255"):
        (tmp_path / "run" / "d" / device).mkdir(parents=True)
    return Places(plugin_dir=tmp_path / "plugins", run_dir=tmp_path / "run", models_dir=tmp_path / "models")


@pytest.fixture
async def allocated(kubelet: FakeKubelet, places: Places) -> AsyncIterator[list[str]]:
    """A plugin runs; the devices that it was told to give away."""
    devices: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(DevicePlugin(places, devices.append).run())
        yield devices
        task.cancel()


async def test_it_registers_and_offers_256_healthy_devices(kubelet: FakeKubelet, allocated: list[str]) -> None:
    request = await kubelet.registered()
    assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", OWN_SOCKET, "ling.dev/node-agent")
    async with kubelet.plugin(request.endpoint) as plugin:
        stream = plugin.ListAndWatch(deviceplugin_pb2.Empty())
        first = await stream.read()
        assert [device.ID for device in first.devices] == [f"d{number:03d}" for number in range(256)]
        assert {device.health for device in first.devices} == {"Healthy"}
        stream.cancel()


async def test_allocate_mounts_the_emptied_folder_and_the_models_read_only(
    kubelet: FakeKubelet, places: Places, allocated: list[str]
) -> None:
    folder = places.folder("d000")
    inode = folder.stat().st_ino
    (folder / "agent.sock").touch()
    (folder / "fd.sock.new").touch()
    (folder / "left").mkdir()
    (folder / "left" / "over").touch()
    (folder / "link").symlink_to(places.run_dir)
    container = await kubelet.allocate((await kubelet.registered()).endpoint, "d000")
    assert [(mount.container_path, mount.host_path, mount.read_only) for mount in container.mounts] == [
        ("/run/ling", str(folder), True),
        ("/models", str(places.models_dir), True),
    ]
    assert sorted(entry.name for entry in folder.iterdir()) == ["agent.sock", "fd.sock.new"]
    assert folder.stat().st_ino == inode
    assert places.folder("d255").exists()
    assert allocated == ["d000"]


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(("d000", "d255"), id="two"),
        pytest.param((), id="none"),
        pytest.param(("../d000",), id="no-device-of-ours"),
    ],
)
async def test_anything_but_one_device_is_refused_with_what_to_write(
    kubelet: FakeKubelet, allocated: list[str], devices: tuple[str, ...]
) -> None:
    endpoint = (await kubelet.registered()).endpoint
    with pytest.raises(grpc.aio.AioRpcError, match=r"write limits \{ling.dev/node-agent: 1\}"):
        await kubelet.allocate(endpoint, *devices)
    assert allocated == []


async def test_a_kubelet_that_starts_again_is_joined_again_also_at_the_same_inode(
    kubelet: FakeKubelet, places: Places, allocated: list[str]
) -> None:
    await kubelet.registered()
    socket, aside = places.plugin_dir / "kubelet.sock", places.plugin_dir / "aside"
    inode = socket.stat().st_ino
    os.link(socket, aside)
    socket.unlink()
    aside.rename(socket)
    assert socket.stat().st_ino == inode
    again = await kubelet.registered()
    await kubelet.allocate(again.endpoint, "d000")


async def test_its_wiped_socket_is_made_again(kubelet: FakeKubelet, places: Places, allocated: list[str]) -> None:
    await kubelet.registered()
    (places.plugin_dir / OWN_SOCKET).unlink()
    again = await kubelet.registered()
    await kubelet.allocate(again.endpoint, "d000")


async def test_a_refusal_is_tried_again(kubelet: FakeKubelet, places: Places) -> None:
    kubelet.refusal = "unsupported version"
    async with asyncio.TaskGroup() as tasks:
        plugin = DevicePlugin(places, lambda _device: None)
        task = tasks.create_task(plugin.run())
        await asyncio.sleep(0.05)
        assert not plugin.registered
        kubelet.refusal = ""
        await kubelet.registered()
        task.cancel()


async def test_pod_resources_name_the_pod_of_each_device_of_ours(kubelet: FakeKubelet) -> None:
    kubelet.pods = {"d000": ("prod", "chat-0"), "d001": ("prod", "chat-0-1a2b3c4d-0")}
    assert await podresources.devices(str(kubelet.pod_resources)) == kubelet.pods


async def test_no_kubelet_is_an_error_to_try_again(tmp_path: Path) -> None:
    with pytest.raises(podresources.KubeletAway, match=r"does not answer at .*nobody\.sock"):
        await podresources.devices(str(tmp_path / "nobody.sock"))
