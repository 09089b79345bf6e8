"""Weights that one SGLang filled are attached by another process bit for bit: target, NEXTN and DSPARK drafts.

SGLang's own model classes, its model runner, its disk loader; memory is host memory. Mutations show that what is
compared would be noticed.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.sglang_lane import Lane, Running

PROGRAM = "tests.support.sglang_weights"
LENT = {"lm_head.weight", "model.word_embeddings.weight"}  # the target's, hung into a NEXTN draft later
ROLES = ("target", "nextn", "dspark")
OTHERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    *(("attach", mutation, {}) for mutation in ("none", "aliases", "flipped", "aliases-unchecked", "derived")),
    ("write", "none", {}),
    ("boot", "no plug-in", {"SGLANG_PLUGINS": "ling_cpu"}),
    ("boot", "no slot", {}),
)


class Room:
    """The filler, which stays, and what it told."""

    def __init__(self, lane: Lane, model: Path, folder: Path) -> None:
        self._lane, self._model, self._folder = lane, model, folder
        self._socket, result = folder / "sets.sock", folder / "filled.json"
        self.filler = lane.start(PROGRAM, "fill", str(model), str(self._socket), str(result))
        wait_for(lambda: self._socket.exists() or self._ended(), "the filler to serve", 500)
        assert self._socket.exists(), self.filler.tail()
        self.filled: dict[str, Any] = json.loads(result.read_text())
        self._others = {(what, mutation): self._start(what, mutation, **env) for what, mutation, env in OTHERS}

    def _ended(self) -> bool:
        return "Traceback" in self.filler.tail()

    def _start(self, what: str, mutation: str, **env: str) -> tuple[Running, Path]:
        result = self._folder / f"{what}-{mutation}.json"
        argv = (what, str(self._model), str(self._socket), str(result), mutation)
        return self._lane.start(PROGRAM, *argv, env=env), result

    def ended(self, what: str, mutation: str = "none") -> tuple[int, Running]:
        """The exit code of one of the other processes, which were all started behind the filler."""
        running, _ = self._others[what, mutation]
        return running.wait(), running

    def attached(self, mutation: str = "none") -> dict[str, Any]:
        """What an attacher told."""
        code, running = self.ended("attach", mutation)
        assert code == 0, running.tail()
        found: dict[str, Any] = json.loads(self._others["attach", mutation][1].read_text())
        return found


@pytest.fixture(scope="session")
def room(lane: Lane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    room = Room(lane, model, tmp_path_factory.mktemp("weights"))
    yield room
    room.filler.end()


@pytest.fixture(scope="session")
def attached(room: Room) -> dict[str, Any]:
    return room.attached()


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Paths whose tensors are not the same in every respect, and those that only one side has."""
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}


@pytest.mark.parametrize("role", ROLES)
def test_a_filled_model_is_the_one_that_sglang_loads_from_disk(room: Room, role: str) -> None:
    stock, filled = room.filled["stock"][role], room.filled["described"][role]
    assert len(stock["tensors"]) > 20
    assert differing(stock["tensors"], filled["tensors"]) == (LENT if role == "nextn" else set())
    assert stock["shared"] == filled["shared"]


@pytest.mark.parametrize("role", ROLES)
def test_an_attached_model_equals_the_filled_one_byte_for_byte(room: Room, attached: dict[str, Any], role: str) -> None:
    filled, other = room.filled["described"][role], attached["described"][role]
    assert differing(filled["tensors"], other["tensors"]) == set()
    assert filled["shared"] == other["shared"]
    assert filled["values"] == other["values"]


def test_the_target_lends_a_draft_what_is_stored_once(room: Room, attached: dict[str, Any]) -> None:
    for told in (room.filled, attached):
        lent = told["described"]["nextn"]["tensors"]
        assert {path for path, one in lent.items() if one["sha256"] == "no storage"} == LENT
        assert told["complete"], "after the lending nothing is without storage"


def test_what_is_derived_and_what_is_shared_was_compared(room: Room) -> None:
    """The places that SGLang's own weight cache leaves empty for this architecture."""
    target = room.filled["described"]["target"]
    assert {"model.layers.5.attention.w_kc", "model.layers.5.attention.w_vc"} <= target["tensors"].keys()
    together = {path for group in target["shared"] for path in group}
    assert {"model.layers.0.attention.attn.conv_weights", "model.layers.2.mlp.correction_bias"} <= together
    assert any("topk_config" in path for path in together)


def test_both_find_the_same_ids_with_the_same_probabilities(room: Room, attached: dict[str, Any]) -> None:
    assert len(room.filled["ids"]) == 3
    assert attached["ids"] == room.filled["ids"]


@pytest.mark.parametrize(
    ("mutation", "sentence"),
    [
        ("aliases", "conv_weights does not share the storage"),
        ("flipped", "has a wrong checksum"),
    ],
)
def test_what_an_attach_notices_itself(room: Room, mutation: str, sentence: str) -> None:
    code, running = room.ended("attach", mutation)
    assert code == 1
    assert "AttachCheckFailed" in running.tail()
    assert sentence in running.tail()


@pytest.mark.parametrize(
    ("mutation", "noticed"),
    [
        ("aliases-unchecked", {"model.layers.0.attention.attn.conv_weights", "model.layers.2.mlp.correction_bias"}),
        ("derived", {"model.layers.5.attention.w_kc", "model.layers.5.attention.w_vc"}),
    ],
)
def test_what_the_comparison_notices(room: Room, mutation: str, noticed: set[str]) -> None:
    """A loader that rebuilds no views, one that derives nothing: neither raises, and both are told apart here."""
    found = room.attached(mutation)
    assert noticed <= differing(room.filled["described"]["target"]["tensors"], found["described"]["target"]["tensors"])


def test_a_write_to_an_attached_weight_kills_the_writer_alone(room: Room, attached: dict[str, Any]) -> None:
    code, running = room.ended("write")
    assert code == 128 + signal.SIGSEGV, running.tail()
    told = running.log.read_text().splitlines()
    assert ("attached" in told, "written" in told) == (True, False)
    assert psutil.Process(room.filler.pid).status() != psutil.STATUS_ZOMBIE
    assert attached["ids"] == room.filled["ids"]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("no plug-in", "Failed to import sglang.private.private_model_loader"),
        ("no slot", "start the server by `ling-engine run`, not by itself"),
    ],
)
def test_without_plug_in_or_slot_nothing_is_served(room: Room, missing: str, sentence: str) -> None:
    code, running = room.ended("boot", missing)
    assert code == 1
    assert sentence in running.tail()
