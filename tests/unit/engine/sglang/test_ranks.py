"""A rank's failure has the exit code that the slot acts on; a process without a seat loads nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ling_api.errors import AttachCheckFailed, DeviceError, FillFailed, PluginMissing
from ling_engine.sglang import content, plugin, ranks, readonly, seat
from ling_engine.sglang.desk import RankDied, error_of
from ling_engine.sglang.rank_side import CallerThread

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(AttachCheckFailed("x"), 5, id="ours"),
        pytest.param(FillFailed("x"), 7, id="ours too"),
        pytest.param(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), 6, id="torch's"),
        pytest.param(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), 6, id="a library's"),
        pytest.param(RuntimeError("Triton Error [CUDA]: device-side assert triggered"), 6, id="triton's"),
        pytest.param(torch.OutOfMemoryError("CUDA out of memory."), 1, id="no memory left: the device is well"),
        pytest.param(ValueError("CUDA error"), 1, id="words alone are no device error"),
        pytest.param(RuntimeError("a bug"), 1, id="anything else"),
    ],
)
def test_an_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert ranks.exit_code(error) == code


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, "BadInput"),
        (5, "AttachCheckFailed"),
        (6, "DeviceError"),
        (7, "FillFailed"),
        (9, "CheckpointChanged"),
        (77, "RankDied"),
    ],
)
def test_a_code_becomes_an_error_again(code: int, kind: str) -> None:
    error = error_of(code, "why")
    assert (type(error).__name__, str(error)) == (kind, "why")
    assert error.exit_code == (code if kind != "RankDied" else RankDied.exit_code)


class Said:
    """The desk's side of a rank."""

    def __init__(self) -> None:
        self.words: list[tuple[int, str]] = []

    def failed(self, code: int, reason: str) -> None:
        self.words.append((code, reason))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    said = Said()
    monkeypatch.setattr(ranks, "_sides", {0: said})
    monkeypatch.setattr(ranks, "_kept", [])
    return said


def raising(error: Exception) -> Any:
    def scheduler() -> None:
        raise error

    return scheduler


def test_a_scheduler_that_fails_says_so_before_it_ends(said: Said) -> None:
    with pytest.raises(DeviceError):
        ranks.watched(raising(DeviceError("the GPU is gone")))
    with pytest.raises(KeyError):
        ranks.watched(raising(KeyError("x")))
    assert said.words == [(6, "the GPU is gone"), (1, "KeyError: 'x'")]


def test_a_draft_that_was_lent_nothing_is_not_served(said: Said) -> None:
    model = nn.Linear(2, 2, bias=False, device="meta")
    attached: Any = SimpleNamespace()
    ranks.keep("nextn", model, attached)
    with pytest.raises(AttachCheckFailed, match="parameter weight of the nextn weights has no storage"):
        ranks.watched(lambda: None)
    assert said.words[0][0] == AttachCheckFailed.exit_code
    model.weight = nn.Parameter(torch.zeros(2, 2))
    assert ranks.watched(lambda: "served") == "served"


def test_a_process_without_a_seat_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat, "_seats", [])
    with pytest.raises(PluginMissing, match="ling-engine run"):
        seat.taken()


def test_without_sglang_nothing_is_in_force() -> None:
    with pytest.raises(PluginMissing, match="without the plug-in ling"):
        plugin.insist()


def test_a_refusal_names_the_operation_and_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat, "_seats", [object()])
    for path in readonly.paths():
        with pytest.raises(readonly.WeightsAreShared, match="change spec") as raised:
            readonly.refusal(path)()
        name = path.rpartition(".")[2]
        assert (name if name != "__init__" else path.split(".")[-2]) in str(raised.value)


async def test_what_a_rank_is_handed_runs_in_its_own_thread_and_its_errors_come_back() -> None:
    thread = CallerThread()
    caller = asyncio.get_running_loop().run_in_executor(None, thread.serve)
    own = await thread.run(threading.get_ident)
    assert own == await thread.run(threading.get_ident)
    assert own != threading.get_ident()
    with pytest.raises(DeviceError, match="gone"):
        await thread.run(raising(DeviceError("gone")))
    thread.end()
    await asyncio.wait_for(caller, 30)


def shard(folder: Path, name: str, numbers: bytes) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [len(numbers) // 4], "data_offsets": [0, len(numbers)]}}
    ).encode()
    data = len(header).to_bytes(8, "little") + header + numbers
    (folder / f"{name}.safetensors").write_bytes(data)
    return data


def test_a_checkpoint_is_hashed_by_shard_names_and_once(tmp_path: Path) -> None:
    data = [shard(tmp_path, name, bytes(range(size))) for name, size in (("a", 8), ("b", 200))]
    index = {"weight_map": {"b": "b.safetensors", "a": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    first = content.begin(tmp_path)
    assert first.result() == hashlib.sha256(b"".join(data)).hexdigest()
    assert content.begin(tmp_path) is first


def test_a_checkpoint_that_cannot_be_read_fails_the_fill(tmp_path: Path) -> None:
    with pytest.raises(FillFailed, match="safetensors"):
        content.begin(tmp_path).result()
