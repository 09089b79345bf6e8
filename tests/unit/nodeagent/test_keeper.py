"""The keeper's settings, its memory, and what it loads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_agent import memfd
from tests.support.processes import PYTHONPATH

from ling_api import fdpass
from ling_nodeagent import keeper_memory, keeper_probes
from ling_nodeagent.keeper import BadEnvironment, Settings
from ling_nodeagent.keeper_memory import Memory, memory_limit

SET = "ab" * 32 + ":0"
SIZE = 3 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    monkeypatch.setattr(keeper_memory, "SLICE", 1 << 20)
    monkeypatch.setattr(keeper_memory, "memory_limit", lambda: None)
    memory = Memory()
    yield memory
    for name in list(memory.sets):
        memory.drop(name)


def keep(part: int = 0, parts: int = 1, **changes: object) -> dict[str, object]:
    frame = {
        "op": "keep",
        "set": SET,
        "kind": "memfd",
        "sizes": [SIZE],
        "part": part,
        "parts": parts,
        "manifest": False,
    }
    return {**frame, **changes}


def steps(memory: Memory) -> list[dict[str, object]]:
    answers = []
    while memory.populating:
        answers += memory.step()
    return answers


def test_loads_the_standard_library_and_fdpass_only() -> None:
    def modules(code: str) -> set[str]:
        argv = [sys.executable, "-c", f"import sys; {code}print(*sys.modules)"]
        done = subprocess.run(argv, env={"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    loaded = modules("import ling_nodeagent.keeper; ") - modules("")
    others = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert others == {
        "ling_api", "ling_api.fdpass", "ling_nodeagent", "ling_nodeagent.keeper", "ling_nodeagent.keeper_memory",
        "ling_nodeagent.keeper_probes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("address", "may"),
    [
        pytest.param("127.0.0.1", True, id="own-loopback"),
        pytest.param("10.244.1.7", False, id="another-pod"),
        pytest.param("10.87.0.11", False, id="the-node"),
    ],
)
def test_only_the_pod_itself_may_ask_the_slot_to_leave(address: str, may: bool) -> None:
    assert keeper_probes.of_this_pod(address) is may


@pytest.mark.parametrize(
    ("env", "says"),
    [
        pytest.param({"LING_PORT": "http"}, "LING_PORT is 'http': write a port number", id="port-name"),
        pytest.param({"LING_PORT": "0"}, "LING_PORT is '0'", id="port-zero"),
        pytest.param({"LING_PROBE_PORT": "65536"}, "LING_PROBE_PORT is '65536'", id="port-too-big"),
        pytest.param({"LING_ADDRESS": "localhost"}, "LING_ADDRESS is 'localhost'", id="address-name"),
        pytest.param({"LING_RUN": "run/ling"}, "LING_RUN is 'run/ling'", id="relative-folder"),
    ],
)
def test_bad_environment_is_one_line_and_exit_2(env: dict[str, str], says: str) -> None:
    with pytest.raises(BadEnvironment, match=says):
        Settings.from_env(env)
    argv = [sys.executable, "-m", "ling_nodeagent.keeper"]
    done = subprocess.run(argv, env={"PYTHONPATH": PYTHONPATH, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"keeper: {says}")
    assert done.stderr.count("\n") == 1


def test_without_variables_it_has_the_pod_defaults() -> None:
    assert Settings.from_env({}) == Settings(run_dir="/run/ling", address="0.0.0.0", port=None, probe_port=8002)


def test_regions_are_populated_before_stored(memory: Memory) -> None:
    fd = memfd(SIZE)
    assert memory.keep(keep(), [fd]) == []
    assert os.fstat(fd).st_blocks == 0
    assert steps(memory) == [{"op": "stored", "set": SET, "part": 0}]
    assert os.fstat(fd).st_blocks * 512 == SIZE


def test_the_same_regions_again_are_answered_and_not_doubled(memory: Memory) -> None:
    fd = memfd(SIZE)
    again, early = os.dup(fd), os.dup(fd)
    memory.keep(keep(), [fd])
    assert memory.keep(keep(), [early]) == []  # still being populated: one `stored` for both
    assert len(steps(memory)) == 1
    assert memory.keep(keep(), [again]) == [{"op": "stored", "set": SET, "part": 0}]
    for copy in (early, again):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)


def test_other_regions_take_the_place_of_the_former(memory: Memory) -> None:
    old, new = memfd(SIZE), memfd(SIZE)
    memory.keep(keep(), [old])
    memory.keep(keep(), [new])
    assert steps(memory) == [{"op": "stored", "set": SET, "part": 0}]
    assert memory.sets[SET].parts[0].fds == [new]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(old)


def test_device_memory_is_never_populated(memory: Memory) -> None:
    read, write = os.pipe()
    os.close(write)
    assert memory.keep(keep(kind="cuda"), [read]) == [{"op": "stored", "set": SET, "part": 0}]


def test_a_sealed_set_comes_with_its_manifest_and_is_given_back_so(memory: Memory) -> None:
    first, second, manifest = memfd(SIZE), memfd(SIZE), memfd(64)
    assert memory.keep(keep(parts=2, manifest=True), [manifest, first]) == [{"op": "stored", "set": SET, "part": 0}]
    assert memory.keep(keep(part=1, parts=2, manifest=True), [second]) == [{"op": "stored", "set": SET, "part": 1}]
    have = [(message["part"], message["manifest"], fds) for message, fds in memory.give_back()]
    assert have == [(0, True, [manifest, first]), (1, False, [second])]


def test_a_drop_closes_everything_also_what_is_being_populated(memory: Memory) -> None:
    fd, manifest = memfd(SIZE), memfd(64)
    memory.keep(keep(), [fd])
    memory.step()
    assert memory.keep_manifest(SET, manifest) == [{"op": "stored-manifest", "set": SET}]
    assert memory.drop(SET) == [{"op": "dropped", "set": SET}]
    assert steps(memory) == []
    for closed in (fd, manifest):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)
    assert memory.drop(SET) == [{"op": "dropped", "set": SET}]


def test_what_cannot_be_populated_says_why_and_may_be_tried_again(memory: Memory) -> None:
    read, write = os.pipe()
    os.close(write)
    memory.keep(keep(), [read])
    assert steps(memory) == [
        {"op": "failed", "set": SET, "reason": f"cannot populate {SIZE} bytes: Bad file descriptor"}
    ]
    assert memory.keep(keep(), [os.dup(read)]) == []
    assert [answer["op"] for answer in steps(memory)] == ["failed"]


def test_regions_beyond_the_memory_limit_are_refused_not_killed(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_memory, "memory_limit", lambda: SIZE)
    memory.keep(keep(parts=2), [memfd(SIZE)])
    (answer,) = memory.keep(keep(part=1, parts=2), [memfd(SIZE)])
    assert answer == {
        "op": "failed", "set": SET,
        "reason": f"{2 * SIZE} bytes of regions exceed the slot pod's memory limit of {SIZE} bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"sizes": [SIZE, SIZE]}, id="fewer-descriptors-than-sizes"),
        pytest.param({"sizes": []}, id="no-region"),
        pytest.param({"sizes": [0]}, id="empty-region"),
        pytest.param({"manifest": True}, id="manifest-missing"),
        pytest.param({"part": "first"}, id="part-is-text"),
    ],
)
def test_a_frame_that_does_not_add_up_changes_nothing(memory: Memory, changes: dict[str, object]) -> None:
    fd = memfd(SIZE)
    with pytest.raises(ValueError, match=r"descriptors|invalid literal"):
        memory.keep(keep(**changes), [fd])
    assert memory.sets == {}
    fdpass.close_all([fd])  # still ours


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        pytest.param("max\n", None, id="v2-unlimited"),
        pytest.param("134217728\n", 134217728, id="limited"),
        pytest.param("9223372036854771712\n", None, id="v1-unlimited"),
    ],
)
def test_memory_limit_reads_both_versions_of_cgroups(tmp_path: Path, text: str, limit: int | None) -> None:
    file = tmp_path / "limit"
    file.write_text(text)
    assert memory_limit((tmp_path / "missing", file)) == limit


def test_no_cgroup_means_no_limit(tmp_path: Path) -> None:
    assert memory_limit((tmp_path / "missing",)) is None


def test_a_set_that_grew_is_given_back_with_all_its_parts(memory: Memory) -> None:
    """A fill deposits its tail when the rest is stored: both frames come with another number of parts."""
    memory.keep(keep(part=0, parts=1), [memfd(SIZE)])
    steps(memory)
    memory.keep(keep(part=1, parts=2), [memfd(SIZE)])
    steps(memory)
    assert [(message["part"], message["parts"]) for message, _ in memory.give_back()] == [(0, 2), (1, 2)]
    memory.keep(keep(part=0, parts=1), [memfd(SIZE)])
    assert {message["parts"] for message, _ in memory.give_back()} == {2}
