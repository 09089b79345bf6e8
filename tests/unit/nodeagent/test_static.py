"""The static file: what it says, and the one line when it is wrong."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ling_api.errors import BadInput
from ling_nodeagent import static
from ling_nodeagent.directory import Caller, SlotSpec, Wish

SLOT = {"deployment": "chat", "revision": "1a2b3c4d", "capacity": "1Gi"}
KEEPER = {"pod": "chat-0", "uid": "u0", "slot": "prod/chat-0", "component": "slot"}
ENGINE = {"pod": "chat-0-1a2b3c4d-0", "uid": "u1", "slot": "prod/chat-0", "component": "engine", "revision": "1a2b3c4d"}


def test_a_full_file() -> None:
    directory = static.parse(
        {
            "slots": {
                "prod/chat-0": {
                    **SLOT, "revisions": ["1a2b3c4d", "00000000"], "graceSeconds": 5, "holdSeconds": 2.5,
                    "wish": {"pod": "chat-0-1a2b3c4d-1", "term": 3}, "leaving": True, "standbys": 2,
                    "lameDuckSeconds": 15, "retiring": True, "leavesBy": 1764450000,
                }
            },
            "callers": {"d000": KEEPER, "d255": ENGINE},
        }
    )  # fmt: skip
    assert directory.slots == {
        "prod/chat-0": SlotSpec(
            name="prod/chat-0", deployment="chat", revision="1a2b3c4d", revisions=frozenset({"1a2b3c4d", "00000000"}),
            capacity=1 << 30, grace_seconds=5, hold_seconds=2.5, wish=Wish(pod="chat-0-1a2b3c4d-1", term=3),
            leaving=True, standbys=2, lame_duck_seconds=15, retiring=True, leaves_by=1764450000.0,
        )
    }  # fmt: skip
    assert directory.callers == {
        "d000": Caller(
            device="d000", namespace="prod", pod="chat-0", uid="u0", slot="prod/chat-0", component="slot", revision=""
        ),
        "d255": Caller(
            device="d255", namespace="prod", pod="chat-0-1a2b3c4d-0", uid="u1", slot="prod/chat-0",
            component="engine", revision="1a2b3c4d",
        ),
    }  # fmt: skip
    assert static.parse(static.to_dict(directory)) == directory


def test_defaults() -> None:
    spec = static.parse({"slots": {"try": SLOT}}).slots["default/try"]
    assert (spec.grace_seconds, spec.hold_seconds, spec.wish, spec.leaving) == (120, 60, None, False)
    assert (spec.standbys, spec.lame_duck_seconds, spec.retiring, spec.leaves_by) == (0, 0, False, None)
    assert spec.revisions == {"1a2b3c4d"}
    assert static.parse({}) == static.Directory()


@pytest.mark.parametrize(
    ("slot", "callers", "says"),
    [
        pytest.param({"revision": 12345678}, {}, "slots.prod/chat-0.revision: write a revision", id="revision-number"),
        pytest.param({"revisions": ["00000000"]}, {}, "name the wanted revision 1a2b3c4d too", id="wanted-not-listed"),
        pytest.param({"revisions": "1a2b3c4d"}, {}, "revisions: write a list", id="revisions-no-list"),
        pytest.param({"capacity": "much"}, {}, "capacity: quantity 'much'", id="capacity"),
        pytest.param({"capacity": None}, {}, "capacity: quantity None", id="capacity-empty"),
        pytest.param({"graceSeconds": 0}, {}, "graceSeconds: write seconds", id="no-grace"),
        pytest.param({"wish": {"pod": "p", "term": -1}}, {}, "wish.term: write the slot's term", id="term"),
        pytest.param({"leaving": "yes"}, {}, "leaving: write true or false", id="leaving"),
        pytest.param({"replicas": 2}, {}, "unknown key 'replicas'; known are capacity", id="unknown-key"),
        pytest.param({}, {"d256": KEEPER}, "callers.d256: write a device from d000 to d255", id="device"),
        pytest.param({}, {"d000": {**KEEPER, "slot": "other"}}, "there is no slot default/other", id="no-such-slot"),
        pytest.param({}, {"d000": {**KEEPER, "component": "gpu"}}, "write slot or engine", id="component"),
        pytest.param({}, {"d000": {**ENGINE, "revision": ""}}, "d000.revision: write a revision", id="engine-revision"),
        pytest.param({}, {"d000": KEEPER, "d001": KEEPER}, "two devices belong to the pod", id="one-pod-two-devices"),
        pytest.param({}, {"d000": "chat-0"}, "callers.d000: write a mapping", id="caller-no-mapping"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, slot: dict[str, Any], callers: dict[str, Any], says: str) -> None:
    file = tmp_path / "directory.yaml"
    file.write_text(yaml.safe_dump({"slots": {"prod/chat-0": {**SLOT, **slot}}, "callers": callers}))
    with pytest.raises(BadInput) as caught:
        static.read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"slots: {a: [", "it is not YAML", id="half-written"),
        pytest.param(b"\xff\xfe\x00", "it is not YAML", id="binary"),
        pytest.param(b"- a", "write a mapping with callers, slots", id="a-list"),
        pytest.param(b"slots: 3", "slots: write a mapping", id="slots-number"),
    ],
)
def test_no_yaml_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "directory.yaml"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=says) as caught:
        static.read(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read it: No such file"):
        static.read(tmp_path / "missing.yaml")


async def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [0, 40, 80, 80, 80]  # emptied, then written piece by piece
    looks = 0
    read_at: list[int] = []

    def stamp(path: Path) -> tuple[int, int, int]:
        nonlocal looks
        looks += 1
        return (0, 0, sizes[min(looks, len(sizes)) - 1])

    def read(path: Path) -> static.Directory:
        read_at.append(looks)
        return static.Directory()

    monkeypatch.setattr(static, "POLL", 0.001)
    monkeypatch.setattr(static, "stamp", stamp)
    monkeypatch.setattr(static, "read", read)
    following = asyncio.create_task(static.follow(tmp_path, (0, 0, 1), lambda directory: None))
    async with asyncio.timeout(60):
        while looks < 10:
            await asyncio.sleep(0.001)
    assert read_at == [4], "at the second look that finds the same file"
    following.cancel()


async def test_a_changed_file_is_posted_and_a_wrong_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, posted = tmp_path / "directory.yaml", asyncio.Queue[static.Directory]()
    file.write_text(yaml.safe_dump({"slots": {"prod/chat-0": SLOT}}))
    following = asyncio.create_task(static.follow(file, static.stamp(file), posted.put_nowait))
    async with asyncio.timeout(60):
        file.write_text("slots: [")
        while "static-file-refused" not in caplog.text:
            await asyncio.sleep(0.01)
        assert posted.empty()
        file.unlink()
        while "cannot read it" not in caplog.text:
            await asyncio.sleep(0.01)
        file.write_text(yaml.safe_dump({"slots": {"prod/chat-0": {**SLOT, "capacity": "2Gi"}}}))
        assert (await posted.get()).slots["prod/chat-0"].capacity == 2 << 30
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
