"""The keeper as a process, against the agent's end of its folder socket."""

import contextlib
import http.client
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hack.ports import free_port
from tests.support.fake_agent import Connection, FakeAgent, memfd
from tests.support.processes import Child, python, wait_for

from ling_api import fdpass

pytestmark = pytest.mark.integration
SET = "cd" * 32 + ":0"
SIZE = 4 << 20
MEMBERS = {"d000": {"namespace": "prod", "pod": "chat-0", "uid": "u", "slot": "prod/chat-0", "component": "slot"}}
Heard = list[tuple[dict[str, Any], list[int]]]
ONE_SLICE = """
import sys, time
from ling_nodeagent import keeper
step, first = keeper.Memory.step, iter([True])

def never_ending(memory):
    if not memory.populating or next(first, False):
        return step(memory)
    time.sleep(0.01)
    return []

keeper.Memory.step = never_ending
sys.exit(keeper.main(()))
"""


class Scene:
    """A folder with the agent's end of the socket, and the ports of a keeper that may be started beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = FakeAgent(folder)
        self.port, self.probe_port = free_port(), free_port()

    def keeper(self, *argv: str) -> contextlib.AbstractContextManager[Child]:
        """The real one, or what these arguments of Python make of it."""
        env = {"LING_RUN": str(self.folder), "LING_ADDRESS": "127.0.0.1", "LING_PROBE_PORT": str(self.probe_port)}
        return python(*argv or ("-m", "ling_nodeagent.keeper"), env=env, log=self.folder / "keeper.log")

    def leave(self) -> contextlib.AbstractContextManager[Child]:
        """The pod's preStop."""
        env = {"LING_PROBE_PORT": str(self.probe_port)}
        return python("-m", "ling_nodeagent.keeper", "leave", env=env, log=self.folder / "leave.log")

    def meet(self) -> tuple[Connection, Heard]:
        """The keeper's next connection, and all that it says up to `ready`."""
        connection = self.agent.accept()
        return connection, connection.hear_until("ready")

    def probe(self, path: str) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.probe_port, timeout=60)) as asking:
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, answer.read().decode().strip()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.agent.close()


@pytest.fixture
def region() -> Iterator[int]:
    fd = memfd(SIZE)
    yield fd
    os.close(fd)


def ops(heard: Heard) -> list[str]:
    return [message["op"] for message, _ in heard]


def keep(agent: Connection, fd: int, **changes: object) -> None:
    fields = {"set": SET, "kind": "memfd", "sizes": [SIZE], "part": 0, "parts": 1, "manifest": False}
    agent.say("keep", [fd], **{**fields, **changes})


def same(one: int, other: int) -> bool:
    return os.path.sameopenfile(one, other)


def held_memfds(pid: int) -> list[str]:
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was read
            links.append(str(fd.readlink()))
    return [link for link in links if "memfd:" in link]


def test_everything_is_given_back_to_the_next_agent_until_dropped(scene: Scene, region: int) -> None:
    manifest = memfd(64)
    with scene.keeper() as keeper:
        agent, heard = scene.meet()
        assert ops(heard) == ["hello", "ready"]
        assert heard[0][0] == {"op": "hello", "version": 1, "kind": "keeper", "netns": fdpass.netns_cookie(agent.sock)}
        keep(agent, region)
        assert agent.hear()[0] == {"op": "stored", "set": SET, "part": 0}
        assert os.fstat(region).st_blocks * 512 == SIZE
        agent.say("keep-manifest", [manifest], set=SET)
        assert agent.hear()[0] == {"op": "stored-manifest", "set": SET}
        agent.say("listen", port=scene.port, backlog=16)
        assert agent.hear()[0]["op"] == "have-listener"
        agent.say("members", members=MEMBERS)
        agent.close()

        agent, heard = scene.meet()
        assert ops(heard) == ["hello", "have", "have-listener", "members", "ready"]
        (have, fds), (_, (listener,)), members = heard[1], heard[2], heard[3][0]["members"]
        assert have == {
            "op": "have",
            "set": SET,
            "kind": "memfd",
            "sizes": [SIZE],
            "part": 0,
            "parts": 1,
            "manifest": True,
        }
        assert same(fds[0], manifest)
        assert same(fds[1], region)
        with socket.socket(fileno=os.dup(listener)) as sock:
            assert sock.getsockname() == ("127.0.0.1", scene.port)
        assert members == MEMBERS

        agent.say("drop", set=SET)
        assert agent.hear()[0] == {"op": "dropped", "set": SET}
        assert held_memfds(keeper.pid) == []
        agent.close()
    os.close(manifest)


def test_a_killed_keeper_takes_back_what_the_agent_holds(scene: Scene, region: int) -> None:
    manifest = memfd(64)
    with scene.keeper() as keeper:
        agent, _ = scene.meet()
        agent.say("listen", port=scene.port, backlog=16)
        listener = agent.hear()[1][0]
        keeper.kill()
        with pytest.raises(fdpass.PeerGone):
            agent.hear()
    with scene.keeper():  # while somebody else still holds the listening socket
        again, heard = scene.meet()
        assert ops(heard) == ["hello", "ready"]
        again.say("listen", port=scene.port, backlog=16)
        answer = again.hear()[0]
        assert answer["op"] == "no-listener"
        assert f"127.0.0.1:{scene.port}: Address already in use" in answer["reason"]
        again.say("listener", [listener])
        again.say("listen", port=scene.port, backlog=16)
        assert same_socket(again.hear()[1][0], listener)
        again.say("keep", [manifest, region], set=SET, kind="memfd", sizes=[SIZE], part=0, parts=1, manifest=True)
        assert again.hear()[0] == {"op": "stored", "set": SET, "part": 0}
        again.close()
    agent.close()
    os.close(manifest)


def same_socket(one: int, other: int) -> bool:
    return os.fstat(one).st_ino == os.fstat(other).st_ino


def test_a_listener_of_another_network_namespace_is_dropped(scene: Scene) -> None:
    made: list[socket.socket | OSError] = []

    def elsewhere() -> None:
        try:
            os.unshare(os.CLONE_NEWNET)  # of this thread alone
            made.append(socket.create_server(("0.0.0.0", 8000)))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        pytest.skip(f"cannot make a network namespace: {made[0]}")
    with scene.keeper(), made[0] as foreign:
        agent, _ = scene.meet()
        agent.say("listener", [foreign.fileno()])
        assert agent.hear()[0] == {"op": "no-listener", "reason": "that listener is of another network namespace"}
        agent.say("listen", port=scene.port, backlog=16)
        assert not same_socket(agent.hear()[1][0], foreign.fileno())
        agent.close()


def test_readiness_is_the_agents_last_word_also_after_the_agent_is_gone(scene: Scene) -> None:
    with scene.keeper():
        agent, _ = scene.meet()
        assert scene.probe("/livez") == (200, "alive")
        assert scene.probe("/readyz") == (503, "the node agent has not answered yet")
        assert scene.probe("/metrics")[0] == 404
        agent.say("word", ready=True, message="chat-0-1a2b3c4d-0 accepts")
        wait_for(lambda: scene.probe("/readyz") == (200, "chat-0-1a2b3c4d-0 accepts"), "ready")
        agent.close()
        scene.meet()[0].close()
        assert scene.probe("/readyz") == (200, "chat-0-1a2b3c4d-0 accepts")


def test_probes_and_the_agent_are_answered_while_memory_is_populated(scene: Scene) -> None:
    size = 512 << 20
    big = memfd(size)
    with scene.keeper("-c", ONE_SLICE):  # what comes behind it takes for ever
        agent, _ = scene.meet()
        keep(agent, big, sizes=[size])
        wait_for(lambda: os.fstat(big).st_blocks, "the first slice")
        assert scene.probe("/livez") == (200, "alive")
        assert os.fstat(big).st_blocks * 512 < size
        agent.say("drop", set=SET)
        assert agent.hear()[0] == {"op": "dropped", "set": SET}
        agent.close()
    os.close(big)


def test_prestop_waits_for_released_and_the_next_agent_hears_of_it_too(scene: Scene) -> None:
    with scene.keeper() as keeper:
        agent, _ = scene.meet()
        with scene.leave() as asking:
            assert agent.hear()[0] == {"op": "leaving"}
            agent.close()
            agent, heard = scene.meet()
            assert ops(heard) == ["hello", "leaving", "ready"]
            assert asking.poll() is None
            agent.say("released")
            assert asking.wait(60) == 0
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
        agent.close()


def test_sigterm_without_prestop_leaves_and_ends_when_released(scene: Scene) -> None:
    with scene.keeper() as keeper:
        agent, _ = scene.meet()
        keeper.send_signal(signal.SIGTERM)
        assert agent.hear()[0] == {"op": "leaving"}
        assert scene.probe("/livez") == (200, "alive")  # it serves on until the memory is free
        agent.say("released")
        assert keeper.wait(60) == 0
        agent.close()


@pytest.mark.parametrize(
    ("op", "fields", "fds"),
    [
        pytest.param("dance", {}, 0, id="unknown-op"),
        pytest.param("keep", {"set": SET}, 1, id="fields-missing"),
        pytest.param("keep-manifest", {"set": SET}, 1, id="set-not-held"),
        pytest.param("listener", {}, 0, id="descriptor-missing"),
        pytest.param("listener", {}, 1, id="no-socket"),
        pytest.param("drop", {"set": [SET]}, 0, id="set-is-a-list"),
        pytest.param("error", {"reason": "no such version"}, 0, id="refused"),
    ],
)
def test_nonsense_ends_the_connection_and_leaks_nothing(
    scene: Scene, region: int, op: str, fields: dict[str, object], fds: int
) -> None:
    with scene.keeper() as keeper:
        agent, _ = scene.meet()
        agent.say(op, [region] * fds, **fields)
        with pytest.raises(fdpass.PeerGone):
            agent.hear()
        agent.close()
        agent, heard = scene.meet()
        assert ops(heard) == ["hello", "ready"]
        assert held_memfds(keeper.pid) == []
        agent.close()


def test_a_taken_probe_port_is_one_line_and_exit_2(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", scene.probe_port)), scene.keeper() as keeper:
        assert keeper.wait(60) == 2
    assert (scene.folder / "keeper.log").read_text().splitlines() == [
        "keeper: cannot listen for probes (LING_ADDRESS, LING_PROBE_PORT): Address already in use"
    ]
