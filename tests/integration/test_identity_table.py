"""An engine whose identity differs in one field is never granted the slot's set, and status names the field.

The fields are those that the reference engine's `describe` finds; the agent is a real process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import checkpoints
from tests.support.attacks import Scene
from tests.support.rank_client import TestSet

from ling_api.identity import Identity, difference
from ling_api.v1 import agent_pb2 as pb
from ling_engine.reference.runtime import RUNTIME
from ling_engine.runtime import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Described(TestSet):
    """A set of a real identity; its bytes are made of the digest."""

    found: Identity

    @property
    def identity(self) -> Identity:
        return self.found


def described(folder: Path, revision: str = "") -> Described:
    settings = ModelSettings(path=folder, revision=revision, context_length=64, max_queue=1, served_name="m")
    (one,) = RUNTIME.describe(settings).sets
    return Described(name="described", found=one.identity)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, Described, Path]]:
    """A slot that holds the set of a tiny checkpoint; an identity knows no path, so a copy is the same set."""
    model = tmp_path_factory.mktemp("checkpoint") / "model"
    checkpoints.tiny(model)
    weights = described(model)
    with Scene(capacity="16Gi") as scene:
        asyncio.run(_filled(scene, weights))
        yield scene, weights, model


async def _filled(scene: Scene, weights: Described) -> None:
    await scene.fill(weights)
    await scene.clear()


async def answer_to(scene: Scene, wanted: TestSet) -> tuple[str, str]:
    """What the agent answers to an engine with that set, and what status says then."""
    launcher = await scene.engine(weights=[wanted])
    launcher.server = f"server-{launcher.pod}"
    await launcher.event(pb.PHASE_STARTED)
    await launcher.attach()
    answer = await launcher.answer(final=True)
    message = scene.status()["message"]
    kind = answer.WhichOneof("answer")
    tickets = [*answer.granted.tickets, *answer.fill.granted]
    await launcher.event(pb.PHASE_EXITED)
    await scene.until(lambda: len(scene.status()["weightSets"]) == 1, "the set that was not filled is forgotten")
    await scene.clear()
    return f"{kind}, granted {len(tickets)}", message


def changed(identity: Identity, name: str, value: str | None) -> Identity:
    fields = {**dict(identity.fields), name: value}
    return Identity(identity.role, tuple(sorted((k, v) for k, v in fields.items() if v is not None)))


async def test_each_field_in_turn(held: tuple[Scene, Described, Path]) -> None:
    scene, weights, _ = held
    names = [name for name, _ in weights.identity.fields]
    assert len(names) > 50, names
    wrong = {}
    for name in names:
        value = dict(weights.identity.fields)[name] + "x"
        wanted = Described(name="described", found=changed(weights.identity, name, value))
        answer, message = await answer_to(scene, wanted)
        if answer != "fill, granted 0" or f"{name} is {value}, held {value[:-1]}" not in message:
            wrong[name] = (answer, message)
    assert not wrong
    answer, _ = await answer_to(scene, weights)
    assert answer == "granted, granted 1"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda one: Described(name="x", found=changed(one.identity, "dtype", None)), "dtype is , held float32"),
        (lambda one: Described(name="x", found=changed(one.identity, "new", "1")), "new is 1, held "),
        (lambda one: Described(name="x", found=one.identity, rank=1), ""),
        (lambda one: Described(name="x", role="nextn", found=Identity("nextn", one.identity.fields)), ""),
    ],
    ids=["field missing", "field more", "rank", "role"],
)
async def test_other_differences(
    held: tuple[Scene, Described, Path], make: Callable[[Described], Described], named: str
) -> None:
    scene, weights, _ = held
    answer, message = await answer_to(scene, make(weights))
    assert answer == "fill, granted 0"
    assert named in message


def touch(folder: Path) -> None:
    shard = folder / "model.safetensors"
    os.utime(shard, ns=(1, 1))


def other_shard(folder: Path) -> None:
    times = (folder / "model.safetensors").stat()
    checkpoints.tiny(folder, 1)
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns + 1))


def other_key(folder: Path) -> None:
    keys: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**keys, "routed_scaling_factor": 1.5}))


@pytest.mark.parametrize(
    ("change", "named"),
    [(touch, "mtime_ns"), (other_shard, "mtime_ns"), (other_key, "config.routed_scaling_factor is 1.5, held 2.5")],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_changed_checkpoint_is_another_set(
    held: tuple[Scene, Described, Path], tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    scene, weights, model = held
    shutil.copytree(model, tmp_path / "model")
    assert described(tmp_path / "model") == weights
    change(tmp_path / "model")
    wanted = described(tmp_path / "model")
    assert len(difference(wanted.identity, weights.identity)) == 1
    answer, message = await answer_to(scene, wanted)
    assert answer == "fill, granted 0"
    assert named in message


async def test_a_stated_revision_is_another_set(held: tuple[Scene, Described, Path]) -> None:
    scene, _, model = held
    answer, message = await answer_to(scene, described(model, "sha256:" + "0" * 64))
    assert answer == "fill, granted 0"
    assert "revision is " in message
